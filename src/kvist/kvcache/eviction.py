"""Chooses which cached blocks go when blocks are needed: always the tail of a leaf that nobody uses.

References are closed under prefixes (who holds a block holds all blocks before it), so the unused blocks of an edge
are its tail, and every unused block can be reached by taking tails of leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from kvist.core.errors import ConfigError
from kvist.kvcache.block_pool import BlockPool
from kvist.kvcache.prefix_tree import DomainRoot, PrefixNode, PrefixTree

EvictionKey = Callable[[PrefixNode], int]  # the lowest goes first; a node's key never falls

EVICTION_POLICIES: dict[str, EvictionKey] = {
    "lru": lambda node: node.last_use,
    "lfu": lambda node: (node.num_uses << 64) + node.last_use,
    "priority": lambda node: (-node.priority << 64) + node.last_use,
}


class LeafEviction:
    """A lazy heap of leaves: an entry may be out of date and is put right when it comes up.

    Every leaf with an unused tail has exactly one entry (`is_queued`), so the heap never outgrows the tree.
    """

    def __init__(self, tree: PrefixTree, pool: BlockPool, policy: str) -> None:
        if policy not in EVICTION_POLICIES:
            raise ConfigError(f"unknown eviction policy {policy!r}; there are {', '.join(EVICTION_POLICIES)}")
        self._tree = tree
        self._pool = pool
        self._key = EVICTION_POLICIES[policy]
        self._heap: list[tuple[int, int, PrefixNode]] = []
        self._num_pushed = 0  # breaks ties, oldest first; nodes are not compared

    def add_candidate(self, node: PrefixNode) -> None:
        """Take note that `node` may be a leaf with an unused tail."""
        if not node.is_queued and not node.children and node.block_ids:
            node.is_queued = True
            self._num_pushed += 1
            heappush(self._heap, (self._key(node), self._num_pushed, node))

    def queued_nodes(self) -> list[PrefixNode]:
        """Nodes with an entry, for checks."""
        return [node for _, _, node in self._heap]

    def evict(self, num_blocks: int) -> list[int]:
        """Drop `num_blocks` unused blocks from the tree and free them; there are at least as many."""
        evicted: list[int] = []
        while len(evicted) < num_blocks:
            node = self._pop()
            num_unused = self._num_unused_at_tail(node, num_blocks - len(evicted))
            if num_unused == 0:
                continue  # in use again; its release will bring it back
            parent = node.parent
            evicted.extend(self._tree.trim(node, num_unused))
            if node.block_ids:
                self.add_candidate(node)
            elif parent is not None and not isinstance(parent, DomainRoot):
                self.add_candidate(parent)
        self._pool.free_evicted(evicted)
        return evicted

    def _pop(self) -> PrefixNode:
        """The leaf that goes first."""
        heap = self._heap
        while True:
            assert heap, "fewer evictable blocks than counted"
            key, _, node = heappop(heap)
            node.is_queued = False
            if node.children or not node.block_ids:
                continue
            if self._key(node) == key:
                return node
            self.add_candidate(node)

    def _num_unused_at_tail(self, node: PrefixNode, limit: int) -> int:
        ref_counts = self._pool.ref_counts
        num_unused = 0
        for block_id in reversed(node.block_ids):
            if num_unused == limit or ref_counts[block_id]:
                break
            num_unused += 1
        return num_unused
