"""What must be true of a KVCache between any two operations. Raises AssertionError naming what is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvist.kvcache.kv_cache import BlockTable, KVCache
from kvist.kvcache.prefix_tree import DomainRoot, PrefixNode
from kvist.kvcache.token_blocks import TOKEN_BYTES


def check_totals(cache: KVCache) -> None:
    """The O(1) part, for simulations at scale."""
    pool = cache.pool
    assert min(pool.num_free_blocks, pool.num_evictable_blocks, pool.num_referenced_blocks) >= 0
    assert pool.num_evictable_blocks <= cache.tree.num_blocks <= pool.num_total_blocks - pool.num_free_blocks


def check_invariants(cache: KVCache) -> None:
    """Everything, block by block: for checking mode and tests."""
    check_totals(cache)
    nodes = [node for root in cache.tree.roots.values() for node in _walk(root)]
    _check_tree(cache, nodes)
    _check_pool(cache, nodes)
    _check_prefix_closed(cache, nodes)
    _check_eviction_queue(cache, nodes)
    for table in cache.tables.values():
        _check_table(cache, table)
    assert all(owner in cache.tables for owner in cache.claims.owners()), "a claim outlives its request"


def _walk(node: PrefixNode) -> Iterator[PrefixNode]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children)


def _check_tree(cache: KVCache, nodes: list[PrefixNode]) -> None:
    block_bytes = cache.block_size * TOKEN_BYTES
    for node in nodes:
        is_root = isinstance(node, DomainRoot)
        assert is_root or node.block_ids, "an edge holds at least one block"
        assert not is_root or node.children, "an empty domain is forgotten"
        assert len(node.tokens) == len(node.block_ids) * block_bytes, "edges are whole blocks"
        firsts = [bytes(child.tokens[:block_bytes]) for child in node.children]
        assert firsts == sorted(set(firsts)), "siblings are sorted and differ in their first block"
        for child in node.children:
            assert child.parent is node, "a child knows its parent"
            assert child.start == node.start + len(node.block_ids), "an edge begins where its parent's ends"
    edges = [node for node in nodes if not isinstance(node, DomainRoot)]
    assert len(edges) == cache.tree.num_nodes, "the number of nodes is right"
    assert sum(len(node.block_ids) for node in edges) == cache.tree.num_blocks, "the number of blocks is right"


def _check_pool(cache: KVCache, nodes: list[PrefixNode]) -> None:
    pool = cache.pool
    held: Counter[int] = Counter()
    for table in cache.tables.values():
        held.update(table.block_ids)
        held.update(block_id for _, block_id in table.shadowed_blocks)
    in_tree = Counter(block_id for node in nodes for block_id in node.block_ids)
    assert all(count == 1 for count in in_tree.values()), "a block has one place in the tree"
    free = pool.free_block_ids()
    assert len(free) == len(set(free)) == pool.num_free_blocks, "a block is free once"
    is_free = set(free)
    num_evictable = 0
    for block_id in range(pool.num_total_blocks):
        references, cached = pool.ref_counts[block_id], bool(pool.cached[block_id])
        assert references == held[block_id], f"block {block_id} counts {references} holders of {held[block_id]}"
        assert cached == (block_id in in_tree), f"block {block_id} is cached if and only if the tree holds it"
        assert (block_id in is_free) == (not references and not cached), f"block {block_id} is free iff unused"
        num_evictable += cached and not references
    assert num_evictable == pool.num_evictable_blocks, "the number of evictable blocks is right"


def _check_prefix_closed(cache: KVCache, nodes: list[PrefixNode]) -> None:
    ref_counts = cache.pool.ref_counts
    for node in nodes:
        chain = list(node.block_ids)
        if node.parent is not None and node.parent.block_ids:
            chain.insert(0, node.parent.block_ids[-1])
        counts = [ref_counts[block_id] for block_id in chain]
        assert counts == sorted(counts, reverse=True), "who holds a block holds all before it"


def _check_eviction_queue(cache: KVCache, nodes: list[PrefixNode]) -> None:
    queued = cache.eviction.queued_nodes()
    assert len(queued) == len({id(node) for node in queued}), "a node is queued once"
    assert {id(node) for node in queued} == {id(node) for node in nodes if node.is_queued}, "is_queued is right"
    for node in nodes:
        if node.block_ids and not node.children and cache.pool.ref_counts[node.block_ids[-1]] == 0:
            assert node.is_queued, "every leaf with an unused tail can be found for eviction"


def _check_table(cache: KVCache, table: BlockTable) -> None:
    depth = table.num_committed_blocks
    assert depth <= len(table.block_ids), "committed blocks are held"
    assert len(set(table.block_ids)) == len(table.block_ids), "a block stands once in a table"
    if not cache.enable_prefix_caching:
        return
    assert (table.tree_node is None) == (depth == 0), "a table with committed blocks knows its place in the tree"
    path = list(table.block_ids[:depth])
    for index, block_id in table.shadowed_blocks:
        assert path[index] != block_id, "a shadowed block is a second copy"
        path[index] = block_id
    node = cache.tree.settle(table.tree_node, depth) if table.tree_node is not None else None
    end = depth
    while node is not None and node.parent is not None:
        assert path[node.start : end] == node.block_ids[: end - node.start].tolist(), "the table is on its path"
        node, end = node.parent, node.start
    for index in range(depth, len(table.block_ids)):
        if cache.pool.cached[table.block_ids[index]]:
            assert (index, table.partial_node is None) == (depth, False), "behind the committed blocks all is private"
