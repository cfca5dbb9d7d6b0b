"""KVCache against the naive model, under any order of admissions, forks, chunks, commits, releases and evictions."""

from __future__ import annotations

from array import array

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.kvcache.naive_kv_cache import NaiveKVCache, NaiveRequest

from kvist.core.errors import KVPoolExhaustedError
from kvist.core.request import KeyDomain, RequestId, pack_token_ids
from kvist.kvcache.invariants import check_invariants
from kvist.kvcache.kv_cache import KVCache

BLOCK_SIZE = 4
DOMAINS = [KeyDomain(b""), KeyDomain(b"a"), KeyDomain(b"b")]
domains = st.sampled_from(DOMAINS)
tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=22)  # two token ids: prefixes collide all the time
picks = st.integers(0, 10**6)


class KVCacheMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(4, 24), policy=st.sampled_from(["lru", "lfu", "priority"]))
    def start(self, num_blocks: int, policy: str) -> None:
        self.cache = KVCache(num_blocks=num_blocks, block_size=BLOCK_SIZE, eviction_policy=policy, record_events=True)
        self.model = NaiveKVCache(BLOCK_SIZE)
        self.num_made = 0

    def new_id(self) -> RequestId:
        self.num_made += 1
        return RequestId(f"r{self.num_made}")

    def pick(self, number: int) -> NaiveRequest:
        assume(self.model.requests)
        return list(self.model.requests.values())[number % len(self.model.requests)]

    @rule(domain=domains, tokens=tokens_of, leave_out=st.integers(0, 3))
    def match(self, domain: KeyDomain, tokens: list[int], leave_out: int) -> None:
        max_tokens = max(0, len(tokens) - leave_out)
        match = self.cache.match(domain, pack_token_ids(tokens), max_tokens=max_tokens)
        assert match.num_tokens == self.model.longest_match(domain, tokens, max_tokens)
        pending = self.model.longest_pending(domain, tokens, max_tokens)
        assert match.num_pending_tokens == max(0, pending - match.num_tokens)
        assert (match.pending_owner is None) == (match.num_pending_tokens == 0)
        assert len(match.block_ids) == -(-match.num_tokens // BLOCK_SIZE)
        wanted = [(domain, tuple(tokens[: position + 1])) for position in range(match.num_tokens)]
        assert self.model.read(match.block_ids, match.num_tokens) == wanted, "a hit holds what it claims to hold"

    @rule(domain=domains, tokens=tokens_of, reads=st.booleans(), priority=st.integers(-2, 2))
    def admit(self, domain: KeyDomain, tokens: list[int], reads: bool, priority: int) -> None:
        packed = pack_token_ids(tokens)
        match = self.cache.match(domain, packed, max_tokens=len(tokens) - 1 if reads else 0)
        num_used = self.cache.num_evictable_blocks_of(match)
        num_evictable = self.cache.num_evictable_blocks
        table = self.cache.admit(self.new_id(), domain, packed, match, priority=priority)
        assert self.cache.num_evictable_blocks == num_evictable - num_used
        end_block = len(tokens) // BLOCK_SIZE
        has_claim = end_block > table.num_committed_blocks
        self.model.requests[table.request_id] = NaiveRequest(
            table, domain, list(tokens), match.num_tokens, end_block if has_claim else 0
        )

    @rule(number=picks, num_tokens=st.integers(1, 9), commits=st.booleans())
    def compute(self, number: int, num_tokens: int, commits: bool) -> None:
        request = self.pick(number)
        while len(request.tokens) < request.num_computed + 1:
            request.tokens.append(number % 2)
        num_tokens = min(num_tokens, len(request.tokens) - request.num_computed)
        wanted = {"num_tokens": request.num_computed + num_tokens, "write_from": request.num_computed}
        needed = self.cache.blocks_needed(request.table, **wanted)
        before = list(request.table.block_ids), self.cache.num_available_blocks
        try:
            growth = self.cache.grow(request.table, **wanted)
        except KVPoolExhaustedError:
            assert needed > self.cache.num_available_blocks
            assert before == (request.table.block_ids, self.cache.num_available_blocks)
            return
        self.model.apply_events(self.cache)
        self.model.apply_growth(request, growth)
        self.model.write(self.cache, request, num_tokens)
        if commits:
            self.commit(request)

    @rule(number=picks)
    def commit_late(self, number: int) -> None:
        self.commit(self.pick(number))

    def commit(self, request: NaiveRequest) -> None:
        known = array("i", request.tokens)
        self.cache.commit(request.table, known, num_computed_tokens=request.num_computed)
        if request.table.num_committed_blocks >= request.claim_end_block:
            request.claim_end_block = 0
        self.model.apply_events(self.cache)

    @rule(number=picks, keep=picks)
    def fork(self, number: int, keep: int) -> None:
        parent = self.pick(number)
        assume(parent.num_computed)
        self.commit(parent)
        num_tokens = 1 + keep % parent.num_computed
        table = self.cache.fork(self.new_id(), parent.table, num_tokens=num_tokens)
        self.model.requests[table.request_id] = NaiveRequest(
            table, parent.domain, parent.tokens[:num_tokens], num_tokens
        )

    @rule(number=picks)
    def release(self, number: int) -> None:
        request = self.pick(number)
        self.cache.release(request.table)
        del self.model.requests[request.table.request_id]

    @rule()
    def reset(self) -> None:
        is_empty = self.cache.reset()
        self.model.apply_events(self.cache)
        assert is_empty == (not self.model.cached)
        assert self.cache.num_evictable_blocks == 0

    @invariant()
    def everything_adds_up(self) -> None:
        if not hasattr(self, "cache"):
            return
        check_invariants(self.cache)
        assert self.cache.tree.num_blocks == len(self.model.cached)

    @invariant()
    def every_request_reads_its_own_tokens(self) -> None:
        if not hasattr(self, "cache"):
            return
        for request in self.model.requests.values():
            got = self.model.read(request.table.block_ids, request.num_computed)
            assert got == request.labels(0, request.num_computed)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for request in self.model.requests.values():
            self.cache.release(request.table)
        check_invariants(self.cache)
        assert self.cache.num_available_blocks == self.cache.num_total_blocks, "at rest nothing is held"


TestKVCacheAgainstModel = KVCacheMachine.TestCase
TestKVCacheAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
