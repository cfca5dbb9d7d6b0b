"""Radix tree from token prefixes to block ids, one root per key domain. Edges are whole blocks, many to an edge.

Owns which prefixes are cached. Knows nothing of references, of requests or of when a block may go: `KVCache` and
`LeafEviction` decide that. Every lookup compares token ids themselves; no hash is trusted.

A position in the tree is (node, depth): `depth` blocks from the root, the last of them in `node`. A split leaves
the old node object as the lower half, so a remembered position is brought up to date by climbing (`settle`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

from kvist.core.request import KeyDomain
from kvist.kvcache.token_blocks import TOKEN_BYTES, num_common_blocks, num_common_tokens

LOWEST_PRIORITY = 2**63 - 1
MAX_EDGE_BLOCKS = 128  # bounds what one append, split or trim copies


class PrefixNode:
    """One edge and its end. Siblings are sorted by their tokens and differ in their first block."""

    __slots__ = (
        "block_ids", "children", "is_queued", "last_use", "num_uses", "parent", "priority", "start", "tokens",
    )  # fmt: skip

    def __init__(self, parent: PrefixNode | None, start: int, tokens: bytes, block_ids: array[int]) -> None:
        self.parent = parent
        self.start = start  # blocks before this edge
        self.tokens = tokens
        self.block_ids = block_ids
        self.children: list[PrefixNode] = []
        self.last_use = 0
        self.num_uses = 0
        self.priority = LOWEST_PRIORITY  # of its most important user; lower is more important
        self.is_queued = False  # whether the eviction queue holds an entry for it


class DomainRoot(PrefixNode):
    """Where the prefixes of one key domain begin; holds no blocks."""

    __slots__ = ("domain",)

    def __init__(self, domain: KeyDomain) -> None:
        super().__init__(None, 0, b"", array("i"))
        self.domain = domain


class Found(NamedTuple):
    """Longest cached prefix: its whole blocks end at (node, len(block_ids)); node None if there is no root.

    partial_block_id: a further block that shares its first `num_partial_tokens` tokens; it lies in `partial_node`.
    """

    node: PrefixNode | None
    block_ids: list[int]
    partial_node: PrefixNode | None = None
    partial_block_id: int | None = None
    num_partial_tokens: int = 0


class Inserted(NamedTuple):
    """The path's end, the tree's blocks for the first of the inserted tokens, and the block before the new ones."""

    node: PrefixNode
    existing_block_ids: list[int]
    parent_block_id: int | None


_by_tokens = attrgetter("tokens")


class PrefixTree:
    def __init__(self, block_size: int) -> None:
        self.num_blocks = 0
        self.num_nodes = 0
        self.roots: dict[KeyDomain, DomainRoot] = {}
        self._block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES

    def find(self, domain: KeyDomain, token_ids: bytes, *, max_tokens: int) -> Found:
        """Longest cached prefix of at most `max_tokens` tokens. Changes nothing."""
        node: PrefixNode | None = self.roots.get(domain)
        if node is None:
            return Found(None, [])
        block_bytes = self._block_bytes
        end = max_tokens // self._block_size * block_bytes
        position = 0
        block_ids: list[int] = []
        while position < end:
            child = self._child(node, token_ids[position : position + block_bytes])
            if child is None:
                break
            node = child
            length = len(child.block_ids)
            common = num_common_blocks(
                token_ids, position, child.tokens, 0, min(length, (end - position) // block_bytes), block_bytes
            )
            block_ids.extend(child.block_ids if common == length else child.block_ids[:common])
            position += common * block_bytes
            if common < length:
                break
        last_piece = token_ids[position : min(position + block_bytes, max_tokens * TOKEN_BYTES)]
        partial_node, partial_block_id, num_partial_tokens = self._find_partial(node, len(block_ids), last_piece)
        return Found(node, block_ids, partial_node, partial_block_id, num_partial_tokens)

    def _child(self, node: PrefixNode, block: bytes) -> PrefixNode | None:
        """The child whose edge begins with `block`, a whole block."""
        children = node.children
        index = bisect_left(children, block, key=_by_tokens)
        if index < len(children) and children[index].tokens.startswith(block):
            return children[index]
        return None

    def _find_partial(self, node: PrefixNode, depth: int, piece: bytes) -> tuple[PrefixNode | None, int | None, int]:
        """The block after (node, depth) that shares most of its first tokens with `piece`, if any."""
        if not piece:
            return None, None, 0
        offset = depth - node.start
        if offset < len(node.block_ids):
            candidates = [node]
        else:
            # In sorted order, what shares most with `piece` stands beside the place where it would go.
            index = bisect_left(node.children, piece, key=_by_tokens)
            candidates = node.children[max(0, index - 1) : index + 1]
            offset = 0
        best, most = None, 0
        start = offset * self._block_bytes
        for candidate in candidates:
            common = num_common_tokens(piece, candidate.tokens[start : start + len(piece)])
            if common > most:
                best, most = candidate, common
        return best, None if best is None else best.block_ids[offset], most

    def settle(self, node: PrefixNode, depth: int) -> PrefixNode:
        """The node that now holds block `depth - 1` of the path through `node`; the root for depth 0.

        That block must not have been evicted since `node` was remembered.
        """
        while node.start >= depth and node.parent is not None:
            node = node.parent
        return node

    def split_at(self, node: PrefixNode, depth: int) -> PrefixNode:
        """Make (node, depth) the end of an edge; return the node that ends there."""
        cut = depth - node.start
        if cut == len(node.block_ids):
            return node
        parent = node.parent
        assert 0 < cut < len(node.block_ids), "a split lies inside an edge"
        assert parent is not None, "a root has no edge"
        cut_bytes = cut * self._block_bytes
        upper = PrefixNode(parent, node.start, node.tokens[:cut_bytes], node.block_ids[:cut])
        upper.last_use, upper.num_uses, upper.priority = node.last_use, node.num_uses, node.priority
        parent.children[self._index_in_parent(node)] = upper
        upper.children = [node]
        node.parent = upper
        node.start = depth
        node.tokens = node.tokens[cut_bytes:]
        node.block_ids = node.block_ids[cut:]
        self.num_nodes += 1
        return upper

    def insert(
        self, domain: KeyDomain, position: tuple[PrefixNode | None, int], tokens: bytes, block_ids: list[int]
    ) -> Inserted:
        """Continue the path at `position` by whole blocks; node None stands for the domain's root.

        The first blocks may be there already, under other ids: those are returned and stay. The rest is added.
        """
        node, depth = position
        if node is None:
            node = self.roots.setdefault(domain, DomainRoot(domain))
        node = self.settle(node, depth)
        existing: list[int] = []
        while len(existing) < len(block_ids):
            offset = depth - node.start
            start = len(existing) * self._block_bytes
            if offset == len(node.block_ids):
                child = self._child(node, tokens[start : start + self._block_bytes])
                if child is None:
                    break
                node, offset = child, 0
            length = min(len(node.block_ids) - offset, len(block_ids) - len(existing))
            common = num_common_blocks(
                tokens, start, node.tokens, offset * self._block_bytes, length, self._block_bytes
            )
            existing.extend(node.block_ids[offset : offset + common])
            depth += common
            if common < length:
                break
        if len(existing) == len(block_ids):
            return Inserted(node, existing, None)
        if depth > node.start:  # not at a root
            node = self.split_at(node, depth)
        parent_block_id = node.block_ids[-1] if node.block_ids else None
        new = self._append(node, tokens[len(existing) * self._block_bytes :], array("i", block_ids[len(existing) :]))
        return Inserted(new, existing, parent_block_id)

    def _append(self, node: PrefixNode, tokens: bytes, block_ids: array[int]) -> PrefixNode:
        """Add blocks behind the end of `node`: to its own edge while nothing hangs on it, then as new nodes."""
        self.num_blocks += len(block_ids)
        num_added = 0
        if node.block_ids and not node.children:
            num_added = max(0, MAX_EDGE_BLOCKS - len(node.block_ids))
            node.tokens += tokens[: num_added * self._block_bytes]
            node.block_ids.extend(block_ids[:num_added])
        while num_added < len(block_ids):
            part = block_ids[num_added : num_added + MAX_EDGE_BLOCKS]
            start = num_added * self._block_bytes
            edge = tokens[start : start + len(part) * self._block_bytes]
            child = PrefixNode(node, node.start + len(node.block_ids), edge, part)
            node.children.insert(bisect_left(node.children, edge, key=_by_tokens), child)
            self.num_nodes += 1
            num_added += len(part)
            node = child
        return node

    def touch(self, node: PrefixNode, *, last_use: int, priority: int) -> None:
        """Note a use of the whole path to the end of `node`."""
        step: PrefixNode | None = node
        while step is not None:
            step.last_use = last_use
            step.num_uses += 1
            if priority < step.priority:
                step.priority = priority
            step = step.parent

    def trim(self, node: PrefixNode, num_blocks: int) -> list[int]:
        """Drop the last blocks of a leaf, and the leaf itself when none is left. Returns the dropped ids."""
        assert not node.children, "only leaves are trimmed"
        keep = len(node.block_ids) - num_blocks
        dropped = node.block_ids[keep:].tolist()
        if keep == 0:
            self._unlink(node)
        del node.block_ids[keep:]
        node.tokens = node.tokens[: keep * self._block_bytes]
        self.num_blocks -= num_blocks
        return dropped

    def _unlink(self, node: PrefixNode) -> None:
        parent = node.parent
        assert parent is not None, "a root is not a leaf with blocks"
        del parent.children[self._index_in_parent(node)]
        self.num_nodes -= 1
        if isinstance(parent, DomainRoot) and not parent.children:
            del self.roots[parent.domain]  # domains come and go: nothing stays behind

    def _index_in_parent(self, node: PrefixNode) -> int:
        assert node.parent is not None, "a root has no siblings"
        return bisect_left(node.parent.children, node.tokens, key=_by_tokens)
