"""The scheduler's one door to cached KV: pool and tree behind request-shaped operations. Ids only, no tensors."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvist.core.errors import KVPoolExhaustedError
from kvist.core.request import KeyDomain, RequestId
from kvist.core.step_plan import BlockMove, BlockMoveKind
from kvist.kvcache.block_pool import BlockPool
from kvist.kvcache.eviction import LeafEviction
from kvist.kvcache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from kvist.kvcache.pending_claims import PendingClaim, PendingClaims
from kvist.kvcache.prefix_tree import PrefixNode, PrefixTree
from kvist.kvcache.token_blocks import TOKEN_BYTES


@dataclass(slots=True, eq=False)
class BlockTable:
    """One request's blocks, in token order. KVCache writes it, everyone else reads.

    The blocks before `num_committed_blocks` are the tree's path to `tree_node` (None at depth 0), except where the
    request computed what the tree had already: there `shadowed_blocks` (index, block id) holds the tree's block too,
    so that who holds a block of the tree holds all before it. The next `grow` gives up the copies.
    partial_node: where the tree's block lies that the table shares until it first writes behind the committed blocks.
    """

    request_id: RequestId
    domain: KeyDomain
    block_ids: list[int] = field(default_factory=list)
    num_committed_blocks: int = 0  # whole blocks that the tree has been told of
    priority: int = 0
    tree_node: PrefixNode | None = None
    partial_node: PrefixNode | None = None
    shadowed_blocks: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How much of a prompt the cache holds; good for `admit` as long as `KVCache.version` stays what it was.

    num_tokens: reusable now; may end inside a block (its last block is then shared until the first write).
    num_pending_tokens: tokens after these that `pending_owner`, a running request, is computing.
    block_ids: the ceil(num_tokens / block_size) blocks that hold them.
    """

    num_tokens: int
    num_pending_tokens: int
    block_ids: list[int]
    pending_owner: RequestId | None = None
    version: int = 0
    tree_node: PrefixNode | None = None
    partial_node: PrefixNode | None = None


@dataclass(frozen=True, slots=True)
class TableGrowth:
    """What `grow` changed: from entry `first` on the table now reads `block_ids`, after `moves` in their order."""

    first: int
    block_ids: list[int]
    moves: list[BlockMove]


class KVCache:
    """Block tables of open requests over one pool, and the tree of prefixes that outlive them.

    token ids are packed little-endian int32. Blocks of a table that hold computed tokens are never taken away
    before `release`. `version` rises whenever a match of any prompt could have changed.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        eviction_policy: str = "lru",
        record_events: bool = False,
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.version = 0
        self.num_queried_tokens = 0  # of all admissions
        self.num_hit_tokens = 0  # of these, read from the cache
        self.pool = BlockPool(num_blocks)
        self.tree = PrefixTree(block_size)
        self.claims = PendingClaims(block_size)
        self.eviction = LeafEviction(self.tree, self.pool, eviction_policy)
        self._tables: dict[RequestId, BlockTable] = {}
        self._num_releases = 0  # the cache's own time, for "last used"
        self._events: list[KVEvent] | None = [] if record_events else None

    @property
    def num_total_blocks(self) -> int:
        return self.pool.num_total_blocks

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free_blocks

    @property
    def num_evictable_blocks(self) -> int:
        return self.pool.num_evictable_blocks

    @property
    def num_available_blocks(self) -> int:
        """Blocks that `grow` can take: free or evictable."""
        return self.pool.num_free_blocks + self.pool.num_evictable_blocks

    @property
    def tables(self) -> Mapping[RequestId, BlockTable]:
        """The open tables."""
        return self._tables

    def match(self, domain: KeyDomain, token_ids: bytes, *, max_tokens: int) -> PrefixMatch:
        """Longest cached prefix of at most `max_tokens` tokens. Changes nothing, not even last use."""
        max_tokens = min(max_tokens, len(token_ids) // TOKEN_BYTES)
        if not self.enable_prefix_caching or max_tokens <= 0:
            return PrefixMatch(0, 0, [], version=self.version)
        found = self.tree.find(domain, token_ids, max_tokens=max_tokens)
        block_ids = found.block_ids
        num_ready_blocks = len(block_ids)
        num_tokens = num_ready_blocks * self.block_size + found.num_partial_tokens
        end_block, owner = self.claims.find(domain, token_ids, num_ready_blocks)
        num_pending_tokens = max(0, min(end_block * self.block_size, max_tokens) - num_tokens)
        if found.partial_block_id is not None:
            block_ids.append(found.partial_block_id)
        return PrefixMatch(
            num_tokens=num_tokens,
            num_pending_tokens=num_pending_tokens,
            block_ids=block_ids,
            pending_owner=owner if num_pending_tokens else None,
            version=self.version,
            tree_node=found.node if num_ready_blocks else None,
            partial_node=found.partial_node,
        )

    def num_evictable_blocks_of(self, match: PrefixMatch) -> int:
        """Blocks of the match that are in nobody's table: admitting it makes so many fewer available."""
        # Who holds a block of a path holds all before it, so the counts fall along the path.
        ref_counts, path = self.pool.ref_counts, match.block_ids
        return len(path) - bisect_left(path, 0, key=lambda block_id: -ref_counts[block_id])

    def admit(
        self, request_id: RequestId, domain: KeyDomain, token_ids: bytes, match: PrefixMatch, *, priority: int = 0
    ) -> BlockTable:
        """Open a table on `match` (references its blocks) and claim the whole blocks after it as pending.

        `match` was made from the same domain and tokens, and nothing has changed since. priority: for the eviction
        policy of that name.
        """
        assert match.version == self.version or not match.block_ids, "the match is out of date"
        table = BlockTable(request_id, domain, list(match.block_ids), match.num_tokens // self.block_size, priority)
        self._open(table)
        self.num_queried_tokens += len(token_ids) // TOKEN_BYTES
        self.num_hit_tokens += match.num_tokens
        self.pool.acquire(match.block_ids)
        if match.tree_node is not None:
            table.tree_node = self._split_at(match.tree_node, table.num_committed_blocks)
        table.partial_node = match.partial_node
        end_block = len(token_ids) // (TOKEN_BYTES * self.block_size)
        if self.enable_prefix_caching and end_block > table.num_committed_blocks:
            self.claims.add(PendingClaim(request_id, domain, token_ids, end_block))
            self.version += 1
        return table

    def fork(self, request_id: RequestId, parent: BlockTable, *, num_tokens: int) -> BlockTable:
        """Open a table sharing the parent's first `num_tokens` tokens, copy-on-write.

        They are computed, and their whole blocks committed. Whoever writes first into the last, shared block, parent
        or child, gets a copy of it from `grow`.
        """
        num_whole, num_rest = divmod(num_tokens, self.block_size)
        depth = num_whole if self.enable_prefix_caching else 0
        assert depth <= parent.num_committed_blocks, "a fork shares blocks that the parent has committed"
        block_ids = parent.block_ids[: num_whole + (num_rest > 0)]
        table = BlockTable(request_id, parent.domain, block_ids, depth, parent.priority)
        self._open(table)
        table.shadowed_blocks = [(index, block_id) for index, block_id in parent.shadowed_blocks if index < depth]
        self.pool.acquire(block_ids)
        self.pool.acquire(block_id for _, block_id in table.shadowed_blocks)
        if depth and parent.tree_node is not None:
            table.tree_node = self._split_at(parent.tree_node, depth)
        if num_rest and self.pool.cached[block_ids[-1]]:
            is_committed = num_whole < parent.num_committed_blocks
            table.partial_node = parent.tree_node if is_committed else parent.partial_node
        return table

    def _split_at(self, node: PrefixNode, depth: int) -> PrefixNode:
        """End an edge at `depth` on the path to `node`, so that what lies behind it keeps its own last use."""
        return self.tree.split_at(self.tree.settle(node, depth), depth)

    def _open(self, table: BlockTable) -> None:
        assert table.request_id not in self._tables, f"{table.request_id} has a table already"
        self._tables[table.request_id] = table

    def blocks_needed(self, table: BlockTable, *, num_tokens: int, write_from: int) -> int:
        """Blocks that `grow` with the same arguments would take."""
        num_missing = max(0, -(-num_tokens // self.block_size) - len(table.block_ids))
        num_taken = num_missing + len(self._shared_blocks(table, write_from))
        return max(0, num_taken - self._num_freed_copies(table)) if num_taken else 0

    def _shared_blocks(self, table: BlockTable, write_from: int) -> list[int]:
        """Indices of the table's blocks from `write_from` on that it must not write."""
        is_writable, block_ids = self.pool.is_writable_by_its_holder, table.block_ids
        first = write_from // self.block_size
        return [index for index in range(first, len(block_ids)) if not is_writable(block_ids[index])]

    def grow(self, table: BlockTable, *, num_tokens: int, write_from: int) -> TableGrowth | None:
        """Make the table cover `num_tokens` tokens, with positions >= `write_from` in blocks it alone may write.

        None if nothing changed. Evicts as needed. Changes nothing when it raises KVPoolExhaustedError.
        A copy holds the tokens before `write_from` only.
        """
        block_size, block_ids = self.block_size, table.block_ids
        assert write_from >= table.num_committed_blocks * block_size, "committed blocks are never written again"
        shared = self._shared_blocks(table, write_from)
        num_old = len(block_ids)
        num_missing = max(0, -(-num_tokens // block_size) - num_old)
        if not shared and not num_missing:
            return None
        first = min([*shared[:1], *(index for index, _ in table.shadowed_blocks), num_old])
        fresh = self._take(table, len(shared) + num_missing)
        moves: list[BlockMove] = []
        for index, target in zip(shared, fresh, strict=False):
            source = block_ids[index]
            num_kept = write_from - index * block_size
            if num_kept > 0:
                moves.append(BlockMove(BlockMoveKind.COPY, source, target, num_kept))
            block_ids[index] = target
            self._drop_shared(table, index, source)
        block_ids.extend(fresh[len(shared) :])
        return TableGrowth(first, block_ids[first:], moves)

    def shrink(self, table: BlockTable, *, num_tokens: int) -> None:
        """Free the last blocks, which `num_tokens` tokens do not need. Nothing in them has been committed."""
        num_kept = -(-num_tokens // self.block_size)
        assert num_kept >= table.num_committed_blocks, "committed blocks are given up with the table"
        self.pool.release(table.block_ids[num_kept:])
        del table.block_ids[num_kept:]

    def _drop_shared(self, table: BlockTable, index: int, block_id: int) -> None:
        """The table has a copy now and lets go of the shared block."""
        self.pool.release((block_id,))
        if table.partial_node is not None and index == table.num_committed_blocks:
            self.eviction.add_candidate(self.tree.settle(table.partial_node, index + 1))
            table.partial_node = None

    def _num_freed_copies(self, table: BlockTable) -> int:
        """Copies of the tree's blocks that are free once this table gives them up."""
        return sum(self.pool.ref_counts[table.block_ids[index]] == 1 for index, _ in table.shadowed_blocks)

    def _give_up_copies(self, table: BlockTable) -> None:
        """Use the tree's blocks in place of equal ones. Without this a request could need more than its share."""
        for index, block_id in table.shadowed_blocks:
            self.pool.release((table.block_ids[index],))
            table.block_ids[index] = block_id
        table.shadowed_blocks = []

    def _take(self, table: BlockTable, num_blocks: int) -> list[int]:
        """Take blocks for `table`: first its own copies, then free ones, then by eviction."""
        if num_blocks - self._num_freed_copies(table) > self.num_available_blocks:
            raise KVPoolExhaustedError(
                f"request {table.request_id} needs {num_blocks} more KV blocks; {self.num_free_blocks} free and "
                f"{self.num_evictable_blocks} evictable of {self.num_total_blocks}. Lower max_num_seqs or raise "
                "kv_cache_bytes."
            )
        self._give_up_copies(table)
        num_short = num_blocks - self.pool.num_free_blocks
        if num_short > 0:
            self._evict(num_short)
        return self.pool.allocate(num_blocks)

    def _evict(self, num_blocks: int) -> None:
        evicted = self.eviction.evict(num_blocks)
        self.version += 1
        if self._events is not None:
            self._events.append(BlockRemoved(evicted))

    def commit(self, table: BlockTable, token_ids: bytes | array[int], *, num_computed_tokens: int) -> None:
        """Tell the tree of blocks that became full: their content is `token_ids[:num_computed_tokens]`.

        Pending claims on them become ready. A block equal to one that the tree has already stays private until the
        next `grow`, which takes the tree's in its place.
        Reads only the new blocks' tokens, so a request's growing array is best handed in as it is.
        """
        first, last = table.num_committed_blocks, num_computed_tokens // self.block_size
        if last <= first or not self.enable_prefix_caching:
            return
        block_bytes = self.block_size * TOKEN_BYTES
        with memoryview(token_ids) as view, view.cast("B") as packed:
            tokens = packed[first * block_bytes : last * block_bytes].tobytes()
        block_ids = table.block_ids[first:last]
        inserted = self.tree.insert(table.domain, (table.tree_node, first), tokens, block_ids)
        table.tree_node = inserted.node
        table.num_committed_blocks = last
        existing = inserted.existing_block_ids
        self._shadow(table, first, existing)
        new = block_ids[len(existing) :]
        if new:
            self.pool.mark_cached(new)
            self.version += 1
            if self._events is not None:
                new_tokens = tokens[len(existing) * block_bytes :]
                self._events.append(BlockStored(table.domain, inserted.parent_block_id, new_tokens, new))
        claimed = self.claims.end_block(table.request_id)
        if claimed is not None and claimed <= last:
            self.claims.drop(table.request_id)
            self.version += 1

    def _shadow(self, table: BlockTable, first: int, existing: list[int]) -> None:
        """Hold the tree's blocks of which the table has computed copies."""
        if existing:
            self.pool.acquire(existing)
            table.shadowed_blocks.extend(enumerate(existing, first))

    def release(self, table: BlockTable) -> None:
        """Give up all references and pending claims of the table. Cached blocks stay, evictable."""
        del self._tables[table.request_id]
        if self.claims.drop(table.request_id):
            self.version += 1
        self.pool.release(table.block_ids)
        self.pool.release(block_id for _, block_id in table.shadowed_blocks)
        self._num_releases += 1
        depth = table.num_committed_blocks
        if table.partial_node is not None:
            self.eviction.add_candidate(self.tree.settle(table.partial_node, depth + 1))
        if table.tree_node is not None:
            node = self.tree.settle(table.tree_node, depth)
            self.tree.touch(node, last_use=self._num_releases, priority=table.priority)
            self.eviction.add_candidate(node)
        table.block_ids = []
        table.shadowed_blocks = []
        table.tree_node = table.partial_node = None

    def reset(self) -> bool:
        """Forget all cached prefixes that no table holds. Returns whether the cache is then empty."""
        if self.pool.num_evictable_blocks:
            self._evict(self.pool.num_evictable_blocks)
        is_empty = self.tree.num_blocks == 0
        if is_empty and self._events is not None:
            self._events.append(AllBlocksCleared())
        return is_empty

    def drain_events(self) -> list[KVEvent]:
        """The events since the last call; none unless `record_events`."""
        events = self._events
        if not events:
            return []
        self._events = []
        return events
