"""A slow, obvious account of what a KVCache must do: prefixes as tuples, the bytes of each slot as a label.

The label of a computed slot is (domain, all tokens up to it): KV depends on the whole prefix and on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.core.request import KeyDomain, RequestId
from kvist.kvcache.kv_cache import BlockTable, KVCache, TableGrowth
from kvist.kvcache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

Label = tuple[KeyDomain, tuple[int, ...]]
Prefix = tuple[int, ...]


@dataclass
class NaiveRequest:
    table: BlockTable
    domain: KeyDomain
    tokens: list[int]
    num_computed: int
    claim_end_block: int = 0
    seen_block_ids: list[int] = field(default_factory=list)  # the table as an executor knows it

    def labels(self, first: int, last: int) -> list[Label]:
        return [(self.domain, tuple(self.tokens[: position + 1])) for position in range(first, last)]


@dataclass
class NaiveKVCache:
    block_size: int
    cached: dict[tuple[KeyDomain, Prefix], int] = field(default_factory=dict)  # whole-block prefix -> its last block
    contents: dict[int, list[Label | None]] = field(default_factory=dict)
    requests: dict[RequestId, NaiveRequest] = field(default_factory=dict)

    def longest_match(self, domain: KeyDomain, tokens: list[int], max_tokens: int) -> int:
        block_size, best = self.block_size, 0
        while best + block_size <= max_tokens and (domain, tuple(tokens[: best + block_size])) in self.cached:
            best += block_size
        whole = tuple(tokens[:best])
        extra = 0
        for other_domain, prefix in self.cached:
            if other_domain == domain and len(prefix) == best + block_size and prefix[:best] == whole:
                common = 0
                while (
                    best + common < max_tokens
                    and common < block_size
                    and prefix[best + common] == tokens[best + common]
                ):
                    common += 1
                extra = max(extra, common)
        return best + extra

    def longest_pending(self, domain: KeyDomain, tokens: list[int], max_tokens: int) -> int:
        """Tokens ready or claimed, in whole blocks."""
        best, block_size = 0, self.block_size
        for request in self.requests.values():
            end = request.claim_end_block * block_size
            while end > best:
                if request.domain == domain and end <= len(tokens) and request.tokens[:end] == tokens[:end]:
                    best = end
                end -= block_size
        return min(best, max_tokens)

    def apply_growth(self, request: NaiveRequest, growth: TableGrowth | None) -> None:
        if growth is None:
            return
        for move in growth.moves:
            kept = self.contents.get(move.source, [None] * self.block_size)[: move.num_tokens]
            self.contents[move.target] = kept + [None] * (self.block_size - move.num_tokens)
        request.seen_block_ids[growth.first :] = growth.block_ids

    def write(self, cache: KVCache, request: NaiveRequest, num_tokens: int) -> None:
        """Compute the next tokens: write their labels where the table says."""
        first = request.num_computed
        for position, label in enumerate(request.labels(first, first + num_tokens), first):
            block_id = request.seen_block_ids[position // self.block_size]
            assert block_id not in self.cached.values(), "a block that others can find is never written"
            holders = [r for r in self.requests.values() if block_id in r.table.block_ids]
            assert holders == [request], "a block is written by the one table that holds it"
            self.contents.setdefault(block_id, [None] * self.block_size)[position % self.block_size] = label
        request.num_computed += num_tokens

    def read(self, block_ids: list[int], num_tokens: int) -> list[Label | None]:
        slots = [slot for block_id in block_ids for slot in self.contents.get(block_id, [None] * self.block_size)]
        return slots[:num_tokens]

    def blocks_in_use(self) -> set[int]:
        return {block_id for request in self.requests.values() for block_id in request.table.block_ids}

    def apply_events(self, cache: KVCache, used_before: set[int]) -> None:
        """Follow what the cache says it stored and removed; both must be legal."""
        for event in cache.drain_events():
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event, used_before)
            else:
                assert isinstance(event, AllBlocksCleared)
                assert not self.cached

    def _store(self, event: BlockStored) -> None:
        domain, prefix = event.domain, ()
        if event.parent_block_id is not None:
            (domain, prefix), *others = [key for key, block in self.cached.items() if block == event.parent_block_id]
            assert (domain, others) == (event.domain, [])
        tokens = memoryview(event.token_ids).cast("i").tolist()
        assert len(tokens) == len(event.block_ids) * self.block_size
        for index, block_id in enumerate(event.block_ids):
            prefix = (*prefix, *tokens[index * self.block_size : (index + 1) * self.block_size])
            assert (domain, prefix) not in self.cached
            self.cached[(domain, prefix)] = block_id

    def _remove(self, event: BlockRemoved, used_before: set[int]) -> None:
        removed = set(event.block_ids)
        assert not removed & used_before, "a block in use is never evicted"
        gone = [key for key, block_id in self.cached.items() if block_id in removed]
        assert len(gone) == len(event.block_ids) == len(removed)
        for key in gone:
            del self.cached[key]
        for domain, prefix in self.cached:
            parent = prefix[: -self.block_size]
            assert not parent or (domain, parent) in self.cached, "a prefix is evicted after what hangs on it"
