"""Hands out KV block ids and counts references to them. Knows nothing of tensors, prompts or the tree's shape.

A block is in exactly one of three states:

    free        no references, not cached
    referenced  at least one block table holds it (cached or not)
    evictable   no references, but cached: the prefix tree can find it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class BlockPool:
    """Ids 0 .. num_total_blocks - 1. All counts are O(1); all operations work on batches of blocks."""

    def __init__(self, num_total_blocks: int) -> None:
        self.num_total_blocks = num_total_blocks
        self.num_evictable_blocks = 0
        self.ref_counts: list[int] = [0] * num_total_blocks  # tables holding the block; read-only outside
        self.cached = bytearray(num_total_blocks)  # 1 if the tree holds the block; read-only outside
        self._freed: list[int] = []
        self._num_touched = 0  # ids from here on were never handed out: their memory is untouched

    @property
    def num_free_blocks(self) -> int:
        return len(self._freed) + self.num_total_blocks - self._num_touched

    @property
    def num_referenced_blocks(self) -> int:
        return self.num_total_blocks - self.num_free_blocks - self.num_evictable_blocks

    def free_block_ids(self) -> list[int]:
        """All free blocks, for checks."""
        return [*self._freed, *range(self._num_touched, self.num_total_blocks)]

    def allocate(self, num_blocks: int) -> list[int]:
        """Take free blocks, each with one reference. The caller makes sure that there are as many.

        Blocks used before come first, the last freed first of all: resident memory follows use.
        """
        assert num_blocks <= self.num_free_blocks, "allocate more blocks than are free"
        num_fresh = max(0, num_blocks - len(self._freed))
        split = len(self._freed) - (num_blocks - num_fresh)
        block_ids = self._freed[split:]
        del self._freed[split:]
        block_ids.extend(range(self._num_touched, self._num_touched + num_fresh))
        self._num_touched += num_fresh
        ref_counts = self.ref_counts
        for block_id in block_ids:
            ref_counts[block_id] = 1
        return block_ids

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each block; none of them is free."""
        ref_counts = self.ref_counts
        num_revived = 0
        for block_id in block_ids:
            count = ref_counts[block_id]
            if count == 0:
                num_revived += 1
            ref_counts[block_id] = count + 1
        self.num_evictable_blocks -= num_revived

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop a reference to each block. The last one makes it evictable if it is cached, else free."""
        ref_counts, cached, freed = self.ref_counts, self.cached, self._freed
        num_evictable = 0
        for block_id in block_ids:
            count = ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} released more often than acquired"
            ref_counts[block_id] = count
            if count == 0:
                if cached[block_id]:
                    num_evictable += 1
                else:
                    freed.append(block_id)
        self.num_evictable_blocks += num_evictable

    def is_writable_by_its_holder(self, block_id: int) -> bool:
        """Whether one table alone holds the block and the tree does not show it to others."""
        return self.ref_counts[block_id] == 1 and not self.cached[block_id]

    def mark_cached(self, block_ids: Iterable[int]) -> None:
        """The tree now holds these referenced blocks."""
        for block_id in block_ids:
            assert self.ref_counts[block_id] > 0, f"block {block_id} is cached, but nobody computed it"
            assert not self.cached[block_id], f"block {block_id} is cached twice"
            self.cached[block_id] = 1

    def free_evicted(self, block_ids: Sequence[int]) -> None:
        """The tree let go of these evictable blocks: they are free."""
        for block_id in block_ids:
            assert self.ref_counts[block_id] == 0, f"block {block_id} is evicted while in use"
            assert self.cached[block_id], f"block {block_id} is evicted, but was not cached"
            self.cached[block_id] = 0
        self.num_evictable_blocks -= len(block_ids)
        self._freed.extend(block_ids)
