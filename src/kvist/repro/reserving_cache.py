"""The baseline of PagedAttention: each request reserves one contiguous region for the longest request there may be.

As FasterTransformer and Orca did. It stands in for KVCache in the same scheduler, over the same bytes and kernels.
"""

from __future__ import annotations

from kvist.core.request import KeyDomain, RequestId
from kvist.kvcache.kv_cache import BlockTable, KVCache, PrefixMatch

MORE_THAN_ANY_REQUEST = 1 << 40  # blocks: a free region holds whatever is asked for


class ReservingKVCache(KVCache):
    """A table covers `max_model_len` tokens from its start, in blocks that follow each other in memory.

    Holds as many whole regions as `num_blocks` give. Nothing is shared or kept for later.
    """

    def __init__(self, *, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self._region_blocks = -(-max_model_len // block_size)
        num_regions = num_blocks // self._region_blocks
        super().__init__(
            num_blocks=num_regions * self._region_blocks, block_size=block_size, enable_prefix_caching=False
        )
        self.pool.allocate(self.num_total_blocks)  # all at once: the regions are handed out here
        self._free_regions = list(range(num_regions))[::-1]

    @property
    def num_regions(self) -> int:
        """Requests that can run at once."""
        return self.num_total_blocks // self._region_blocks

    @property
    def num_free_blocks(self) -> int:
        return len(self._free_regions) * self._region_blocks

    @property
    def num_available_blocks(self) -> int:
        return MORE_THAN_ANY_REQUEST if self._free_regions else 0

    def admit(
        self, request_id: RequestId, domain: KeyDomain, token_ids: bytes, match: PrefixMatch, *, priority: int = 0
    ) -> BlockTable:
        """As KVCache.admit; takes a free region, which there must be."""
        first = self._free_regions.pop() * self._region_blocks
        table = BlockTable(request_id, domain, list(range(first, first + self._region_blocks)), 0, priority)
        self._open(table)
        return table

    def release(self, table: BlockTable) -> None:
        """As KVCache.release; gives the region back."""
        del self._tables[table.request_id]
        self._free_regions.append(table.block_ids[0] // self._region_blocks)
        table.block_ids = []
