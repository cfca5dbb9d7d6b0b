"""KVCache against the naive model, under any order of admissions, forks, chunks, commits, releases and evictions."""

from __future__ import annotations

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.kvcache.naive_kv_cache import NaiveKVCache, NaiveRequest

from kvist.core.errors import KVPoolExhaustedError
from kvist.core.request import KeyDomain, RequestId, pack_token_ids
from kvist.kvcache.invariants import check_invariants
from kvist.kvcache.kv_cache import KVCache, PrefixMatch

BLOCK_SIZE = 4
DOMAINS = [KeyDomain(b""), KeyDomain(b"a"), KeyDomain(b"b")]
domains = st.sampled_from([*DOMAINS[:1] * 3, *DOMAINS])
# Cuts of one text, sometimes with another token somewhere: prefixes collide all the time, inside blocks too.
tokens_of = st.builds(
    lambda length, changed: [int(position == changed) for position in range(length)],
    st.integers(1, 22),
    st.integers(-20, 20),
)
picks = st.integers(0, 10**6)


has_requests = precondition(lambda machine: machine.model.requests)


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
        return list(self.model.requests.values())[number % len(self.model.requests)]

    @rule(domain=domains, tokens=tokens_of, leave_out=st.integers(0, 3))
    def match(self, domain: KeyDomain, tokens: list[int], leave_out: int) -> None:
        self.checked_match(domain, tokens, max(0, len(tokens) - leave_out))

    def checked_match(self, domain: KeyDomain, tokens: list[int], max_tokens: int) -> PrefixMatch:
        match = self.cache.match(domain, pack_token_ids(tokens), max_tokens=max_tokens)
        assert match.num_tokens == self.model.longest_match(domain, tokens, max_tokens)
        pending = self.model.longest_pending(domain, tokens, max_tokens)
        assert match.num_pending_tokens == max(0, pending - match.num_tokens)
        assert (match.pending_owner is None) == (match.num_pending_tokens == 0)
        assert len(match.block_ids) == -(-match.num_tokens // BLOCK_SIZE)
        wanted = [(domain, tuple(tokens[: position + 1])) for position in range(match.num_tokens)]
        assert self.model.read(match.block_ids, match.num_tokens) == wanted, "a hit holds what it claims to hold"
        return match

    @rule(domain=domains, tokens=tokens_of, num_skipped=st.sampled_from([0, 0, 1, 99]), computed=st.integers(0, 30))
    def admit(self, domain: KeyDomain, tokens: list[int], num_skipped: int, computed: int) -> None:
        packed = pack_token_ids(tokens)
        match = self.checked_match(domain, tokens, max(0, len(tokens) - 1 - num_skipped))
        num_used = self.cache.num_evictable_blocks_of(match)
        num_evictable = self.cache.num_evictable_blocks
        table = self.cache.admit(self.new_id(), domain, packed, match, priority=computed % 3)
        assert self.cache.num_evictable_blocks == num_evictable - num_used
        end_block = len(tokens) // BLOCK_SIZE
        has_claim = end_block > table.num_committed_blocks
        request = NaiveRequest(table, domain, list(tokens), match.num_tokens, end_block if has_claim else 0)
        request.seen_block_ids = list(table.block_ids)
        self.model.requests[table.request_id] = request
        if computed:
            self.run(request, computed, commits=computed > 1)

    @has_requests
    @rule(number=picks, num_tokens=st.integers(1, 9), commits=st.booleans())
    def compute(self, number: int, num_tokens: int, commits: bool) -> None:
        self.run(self.pick(number), num_tokens, commits=commits)

    def run(self, request: NaiveRequest, num_tokens: int, *, commits: bool) -> None:
        while len(request.tokens) < request.num_computed + 1:
            request.tokens.append(int(num_tokens == 1))
        num_tokens = min(num_tokens, len(request.tokens) - request.num_computed)
        wanted = {"num_tokens": request.num_computed + num_tokens, "write_from": request.num_computed}
        needed = self.cache.blocks_needed(request.table, **wanted)
        available = self.cache.num_available_blocks
        before = list(request.table.block_ids), self.cache.num_available_blocks
        used_before = self.model.blocks_in_use()
        try:
            growth = self.cache.grow(request.table, **wanted)
        except KVPoolExhaustedError:
            assert needed > self.cache.num_available_blocks
            assert before == (request.table.block_ids, self.cache.num_available_blocks)
            return
        self.model.apply_events(self.cache, used_before)
        self.model.apply_growth(request, growth)
        assert needed <= available
        self.model.write(self.cache, request, num_tokens)
        if commits:
            self.commit(request)

    @has_requests
    @rule(number=picks, num_drafts=st.integers(1, 9))
    def refuse_drafts(self, number: int, num_drafts: int) -> None:
        """Blocks taken for tokens that came to nothing are free again."""
        request = self.pick(number)
        used_before, start = self.model.blocks_in_use(), request.num_computed
        try:
            growth = self.cache.grow(request.table, num_tokens=start + 1 + num_drafts, write_from=start)
        except KVPoolExhaustedError:
            return
        self.model.apply_events(self.cache, used_before)
        self.model.apply_growth(request, growth)
        available = self.cache.num_available_blocks
        num_freed = max(0, len(request.table.block_ids) - -(-(start + 1) // BLOCK_SIZE))
        self.cache.shrink(request.table, num_tokens=start + 1)
        assert self.cache.num_available_blocks == available + num_freed

    @has_requests
    @rule(number=picks)
    def commit_late(self, number: int) -> None:
        self.commit(self.pick(number))

    def commit(self, request: NaiveRequest) -> None:
        known = array("i", request.tokens)
        self.cache.commit(request.table, known, num_computed_tokens=request.num_computed)
        if request.table.num_committed_blocks >= request.claim_end_block:
            request.claim_end_block = 0
        self.model.apply_events(self.cache, self.model.blocks_in_use())

    @has_requests
    @rule(number=picks, keep=picks)
    def fork(self, number: int, keep: int) -> None:
        parent = self.pick(number)
        if not parent.num_computed:
            return
        self.commit(parent)
        num_tokens = 1 + keep % parent.num_computed
        table = self.cache.fork(self.new_id(), parent.table, num_tokens=num_tokens)
        self.model.requests[table.request_id] = NaiveRequest(
            table, parent.domain, parent.tokens[:num_tokens], num_tokens, seen_block_ids=list(table.block_ids)
        )

    @has_requests
    @rule(number=picks)
    def release(self, number: int) -> None:
        request = self.pick(number)
        self.cache.release(request.table)
        del self.model.requests[request.table.request_id]

    @rule()
    def reset(self) -> None:
        is_empty = self.cache.reset()
        self.model.apply_events(self.cache, self.model.blocks_in_use())
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
            got = self.model.read(request.seen_block_ids, request.num_computed)
            assert got == request.labels(0, request.num_computed)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for request in self.model.requests.values():
            self.cache.release(request.table)
        check_invariants(self.cache)
        assert self.cache.num_available_blocks == self.cache.num_total_blocks, "at rest nothing is held"


TestKVCacheAgainstModel = KVCacheMachine.TestCase
TestKVCacheAgainstModel.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
