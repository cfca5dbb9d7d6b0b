"""Which blocks running requests are about to fill, so that others can wait for them instead of computing them again.

A claim is a promise, not content: nothing here can be read. Blocks become readable through the tree alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvist.core.request import KeyDomain, RequestId
from kvist.kvcache.token_blocks import TOKEN_BYTES, num_common_blocks


@dataclass(frozen=True, slots=True)
class PendingClaim:
    """`owner` is going to fill the blocks of `token_ids` up to `end_block`."""

    owner: RequestId
    domain: KeyDomain
    token_ids: bytes
    end_block: int


class PendingClaims:
    """At most one claim per request. Claims are found by their first block, then compared token by token."""

    def __init__(self, block_size: int) -> None:
        self._block_bytes = block_size * TOKEN_BYTES
        self._by_owner: dict[RequestId, PendingClaim] = {}
        self._by_first_block: dict[tuple[KeyDomain, bytes], dict[RequestId, PendingClaim]] = {}

    def owners(self) -> Collection[RequestId]:
        return self._by_owner.keys()

    def add(self, claim: PendingClaim) -> None:
        self._by_owner[claim.owner] = claim
        self._by_first_block.setdefault(self._key(claim.domain, claim.token_ids), {})[claim.owner] = claim

    def end_block(self, owner: RequestId) -> int | None:
        claim = self._by_owner.get(owner)
        return None if claim is None else claim.end_block

    def drop(self, owner: RequestId) -> bool:
        """Give up the owner's claim. Returns whether there was one."""
        claim = self._by_owner.pop(owner, None)
        if claim is None:
            return False
        key = self._key(claim.domain, claim.token_ids)
        bucket = self._by_first_block[key]
        del bucket[owner]
        if not bucket:
            del self._by_first_block[key]
        return True

    def find(self, domain: KeyDomain, token_ids: bytes, num_ready_blocks: int) -> tuple[int, RequestId | None]:
        """How many blocks of `token_ids` are ready or claimed, and by whom. (num_ready_blocks, None) if none is."""
        block_bytes = self._block_bytes
        num_blocks = len(token_ids) // block_bytes
        if num_blocks <= num_ready_blocks or not self._by_owner:
            return num_ready_blocks, None
        end, owner = num_ready_blocks, None
        for claim in self._by_first_block.get(self._key(domain, token_ids), {}).values():
            limit = min(claim.end_block, num_blocks)
            if limit <= end or not self._is_next_block_equal(claim.token_ids, token_ids, end):
                continue
            common = num_common_blocks(token_ids, 0, claim.token_ids, 0, limit, block_bytes)
            if common > end:
                end, owner = common, claim.owner
        return end, owner

    def _is_next_block_equal(self, ours: bytes, theirs: bytes, block: int) -> bool:
        """Cheap test that spares most comparisons of whole prompts."""
        start = block * self._block_bytes
        return ours.startswith(theirs[start : start + self._block_bytes], start)

    def _key(self, domain: KeyDomain, token_ids: bytes) -> tuple[KeyDomain, bytes]:
        return domain, token_ids[: self._block_bytes]
