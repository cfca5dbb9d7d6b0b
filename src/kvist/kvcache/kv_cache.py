"""The scheduler's one door to cached KV: pool and tree behind request-shaped operations. Ids only, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.core.request import KeyDomain, RequestId
from kvist.core.step_plan import BlockMove


@dataclass(slots=True)
class BlockTable:
    """One request's blocks, in token order. KVCache writes it, everyone else reads."""

    request_id: RequestId
    domain: KeyDomain
    block_ids: list[int] = field(default_factory=list)
    num_committed_blocks: int = 0  # whole blocks that the tree has been told of


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How much of a prompt the cache holds.

    num_tokens: reusable now; may end inside a block (its last block is then shared until the first write).
    num_pending_tokens: further tokens, in whole blocks, that a running request is computing.
    block_ids: the ceil(num_tokens / block_size) blocks that hold them.
    """

    num_tokens: int
    num_pending_tokens: int
    block_ids: list[int]
    pending_owner: RequestId | None = None


@dataclass(frozen=True, slots=True)
class TableGrowth:
    """What `grow` changed: from entry `first` on the table now reads `block_ids`, after `moves`."""

    first: int
    block_ids: list[int]
    moves: list[BlockMove]


class KVCache:
    """Contract; see each method. token ids are packed little-endian int32 everywhere."""

    def match(self, domain: KeyDomain, token_ids: bytes, *, max_tokens: int) -> PrefixMatch:
        """Longest cached prefix of at most `max_tokens` tokens. Changes nothing, not even last use."""
        raise NotImplementedError

    def admit(self, request_id: RequestId, domain: KeyDomain, token_ids: bytes, match: PrefixMatch) -> BlockTable:
        """Open a table on `match` (references its blocks) and claim the whole blocks after it as pending."""
        raise NotImplementedError

    def fork(self, request_id: RequestId, parent: BlockTable, *, num_tokens: int) -> BlockTable:
        """Open a table sharing the parent's first `num_tokens` tokens, copy-on-write."""
        raise NotImplementedError

    def blocks_needed(self, table: BlockTable, *, num_tokens: int, write_from: int) -> int:
        """Blocks that `grow` with the same arguments would take."""
        raise NotImplementedError

    def grow(self, table: BlockTable, *, num_tokens: int, write_from: int) -> TableGrowth | None:
        """Make the table cover `num_tokens` tokens, with positions >= `write_from` in blocks it alone may write.

        None if nothing changed. Evicts as needed. Changes nothing when it raises KVPoolExhaustedError.
        """
        raise NotImplementedError

    def commit(self, table: BlockTable, token_ids: bytes, *, num_computed_tokens: int) -> None:
        """Tell the tree of blocks that became full: their content is `token_ids[:num_computed_tokens]`.

        Pending claims on them become ready. A block equal to one the tree already has stays private.
        """
        raise NotImplementedError

    def release(self, table: BlockTable) -> None:
        """Give up all references and pending claims of the table. Cached blocks stay, evictable."""
        raise NotImplementedError
