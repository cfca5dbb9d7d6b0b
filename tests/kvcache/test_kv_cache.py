"""What a KVCache promises, one sentence at a time."""

from __future__ import annotations

import pytest

from kvist.core.errors import ConfigError, KVPoolExhaustedError
from kvist.core.request import PUBLIC_DOMAIN, KeyDomain, RequestId, pack_token_ids
from kvist.core.step_plan import BlockMove, BlockMoveKind
from kvist.kvcache.invariants import check_invariants
from kvist.kvcache.kv_cache import BlockTable, KVCache
from kvist.kvcache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

TEXT = list(range(100, 200))


class Driver:
    """Runs requests on a cache the way a scheduler does, and checks it after each call."""

    def __init__(self, num_blocks: int = 32, block_size: int = 4, **options: object) -> None:
        self.cache = KVCache(num_blocks=num_blocks, block_size=block_size, **options)  # type: ignore[arg-type]
        self.num_opened = 0

    def hit(self, tokens: list[int], domain: KeyDomain = PUBLIC_DOMAIN) -> int:
        return self.cache.match(domain, pack_token_ids(tokens), max_tokens=len(tokens)).num_tokens

    def open(self, tokens: list[int], domain: KeyDomain = PUBLIC_DOMAIN, priority: int = 0) -> BlockTable:
        self.num_opened += 1
        packed = pack_token_ids(tokens)
        match = self.cache.match(domain, packed, max_tokens=len(tokens) - 1)
        name = RequestId(f"r{self.num_opened}")
        table = self.cache.admit(name, domain, packed, match, priority=priority)
        check_invariants(self.cache)
        return table

    def compute(self, table: BlockTable, tokens: list[int], write_from: int) -> list[BlockMove]:
        growth = self.cache.grow(table, num_tokens=len(tokens), write_from=write_from)
        self.cache.commit(table, pack_token_ids(tokens), num_computed_tokens=len(tokens))
        check_invariants(self.cache)
        return growth.moves if growth else []

    def close(self, table: BlockTable) -> None:
        self.cache.release(table)
        check_invariants(self.cache)

    def serve(self, tokens: list[int], domain: KeyDomain = PUBLIC_DOMAIN, priority: int = 0) -> None:
        table = self.open(tokens, domain, priority)
        self.compute(table, tokens, table.num_committed_blocks * self.cache.block_size)
        self.close(table)


def test_a_prompt_served_before_is_found_token_by_token() -> None:
    driver = Driver()
    driver.serve(TEXT[:12])
    assert [driver.hit(TEXT[:n]) for n in (3, 4, 11, 12, 20)] == [3, 4, 11, 12, 12]
    assert driver.hit([*TEXT[:10], 0, 0]) == 10


def test_the_last_block_not_full_is_not_found() -> None:
    driver = Driver()
    driver.serve(TEXT[:11])
    assert driver.hit(TEXT[:11]) == 8


def test_a_match_inside_a_block_picks_the_sibling_that_shares_most() -> None:
    driver = Driver()
    for tail in ([1, 1, 1, 1], [1, 2, 1, 1], [1, 2, 3, 1], [2, 2, 2, 2]):
        driver.serve([*TEXT[:4], *tail])
    assert driver.hit([*TEXT[:4], 1, 2, 3, 9]) == 7
    assert driver.hit([*TEXT[:4], 1, 2, 9, 9]) == 6
    assert driver.hit([*TEXT[:4], 9, 9, 9, 9]) == 4


def test_reuse_inside_a_block_copies_only_the_shared_slots() -> None:
    driver = Driver()
    driver.serve(TEXT[:8])
    tokens = [*TEXT[:6], 1, 2, 3]
    table = driver.open(tokens)
    shared = table.block_ids[1]
    moves = driver.compute(table, tokens, write_from=6)
    assert moves == [BlockMove(BlockMoveKind.COPY, shared, table.block_ids[1], 2)]
    assert driver.hit(TEXT[:8]) == driver.hit(tokens[:8]) == 8


def test_requests_wait_for_blocks_that_another_computes() -> None:
    driver = Driver()
    first = driver.open([*TEXT[:9], 1, 2, 3])
    other = [*TEXT[:9], 7, 7, 7]
    match = driver.cache.match(PUBLIC_DOMAIN, pack_token_ids(other), max_tokens=11)
    assert (match.num_tokens, match.num_pending_tokens, match.pending_owner) == (0, 8, first.request_id)
    driver.cache.grow(first, num_tokens=12, write_from=0)
    driver.cache.commit(first, pack_token_ids(TEXT[:4]), num_computed_tokens=4)
    match = driver.cache.match(PUBLIC_DOMAIN, pack_token_ids(other), max_tokens=11)
    assert (match.num_tokens, match.num_pending_tokens) == (4, 4)


def test_pending_blocks_are_given_up_when_their_owner_goes() -> None:
    driver = Driver()
    version = driver.cache.version
    owner = driver.open(TEXT[:12])
    driver.close(owner)
    match = driver.cache.match(PUBLIC_DOMAIN, pack_token_ids(TEXT[:12]), max_tokens=12)
    assert (match.num_tokens, match.num_pending_tokens, match.pending_owner) == (0, 0, None)
    assert driver.cache.version > version


def test_pending_tokens_are_whole_blocks_of_the_owner_and_within_the_limit() -> None:
    driver = Driver()
    driver.open(TEXT[:11])
    packed = pack_token_ids(TEXT[:12])
    assert driver.cache.match(PUBLIC_DOMAIN, packed, max_tokens=12).num_pending_tokens == 8
    assert driver.cache.match(PUBLIC_DOMAIN, packed, max_tokens=7).num_pending_tokens == 7


def test_the_version_stays_while_no_match_can_change() -> None:
    driver = Driver()
    driver.serve(TEXT[:8])
    version = driver.cache.version
    driver.hit(TEXT[:8])
    table = driver.open(TEXT[:9])
    driver.close(table)
    assert driver.cache.version == version


def test_equal_blocks_computed_twice_are_stored_once() -> None:
    driver = Driver()
    tokens = TEXT[:8]
    tables = [driver.open(tokens), driver.open(tokens)]
    for table in tables:
        driver.compute(table, tokens, write_from=0)
    assert driver.cache.tree.num_blocks == 2
    for table in tables:
        driver.close(table)
    assert (driver.cache.num_evictable_blocks, driver.cache.num_free_blocks) == (2, 30)


def test_a_copy_of_a_cached_block_is_given_up_when_blocks_are_needed() -> None:
    driver = Driver(num_blocks=3)
    tokens = TEXT[:12]
    driver.serve(tokens[:4])
    (cached,) = driver.cache.match(PUBLIC_DOMAIN, pack_token_ids(tokens), max_tokens=4).block_ids
    nothing = driver.cache.match(PUBLIC_DOMAIN, pack_token_ids(tokens), max_tokens=0)
    table = driver.cache.admit(RequestId("again"), PUBLIC_DOMAIN, pack_token_ids(tokens), nothing)
    driver.compute(table, tokens[:8], write_from=0)
    assert driver.cache.num_available_blocks == 0, "two blocks and a copy"
    assert driver.cache.blocks_needed(table, num_tokens=12, write_from=8) == 0
    growth = driver.cache.grow(table, num_tokens=12, write_from=8)
    assert growth is not None
    assert (growth.first, growth.block_ids[0], growth.moves) == (0, cached, [])
    check_invariants(driver.cache)


def test_what_follows_a_block_computed_twice_is_still_cached() -> None:
    driver = Driver()
    driver.serve(TEXT[:8])
    table = driver.open(TEXT[:8])  # its last token is computed again, into a copy of the last block
    driver.compute(table, TEXT[:16], write_from=7)
    driver.close(table)
    assert driver.hit(TEXT[:16]) == 16


def test_a_fork_shares_blocks_and_copies_before_it_writes() -> None:
    driver = Driver()
    tokens = TEXT[:10]
    parent = driver.open(tokens)
    driver.compute(parent, tokens, write_from=0)
    child = driver.cache.fork(RequestId("child"), parent, num_tokens=9)
    assert child.block_ids == parent.block_ids
    moves = driver.compute(child, [*tokens[:9], 1], write_from=9)
    assert [(move.source, move.num_tokens) for move in moves] == [(parent.block_ids[2], 1)]
    assert child.block_ids[:2] == parent.block_ids[:2]
    assert driver.cache.grow(parent, num_tokens=11, write_from=10) is None, "the parent's block is its own again"


def test_a_fork_of_whole_blocks_copies_nothing() -> None:
    driver = Driver()
    parent = driver.open(TEXT[:8])
    driver.compute(parent, TEXT[:8], write_from=0)
    child = driver.cache.fork(RequestId("child"), parent, num_tokens=8)
    assert driver.compute(child, TEXT[:9], write_from=8) == []


def test_the_least_recently_used_prefix_goes_first() -> None:
    driver = Driver(num_blocks=8)
    old, young = [1] * 8, [2] * 8
    driver.serve(young)
    driver.serve(old)
    driver.serve(young)
    driver.serve([3] * 20)
    assert (driver.hit(old), driver.hit(young)) == (4, 8)


def test_the_least_frequently_used_prefix_goes_first() -> None:
    driver = Driver(num_blocks=8, eviction_policy="lfu")
    for _ in range(3):
        driver.serve([1] * 8)
    driver.serve([2] * 8)
    driver.serve([3] * 20)
    assert (driver.hit([1] * 8), driver.hit([2] * 8)) == (8, 4)


def test_the_prefix_of_the_least_important_request_goes_first() -> None:
    driver = Driver(num_blocks=8, eviction_policy="priority")
    driver.serve([1] * 8, priority=-1)
    driver.serve([2] * 8, priority=5)
    driver.serve([3] * 20)
    assert (driver.hit([1] * 8), driver.hit([2] * 8)) == (8, 4)


def test_what_lies_behind_the_used_part_of_a_prefix_is_not_kept_young() -> None:
    driver = Driver(num_blocks=8)
    driver.serve(TEXT[:16])
    driver.serve([1] * 8)
    driver.serve(TEXT[:9])  # uses the first half of the first prompt
    driver.serve([2] * 16)
    assert (driver.hit(TEXT[:16]), driver.hit([1] * 8)) == (8, 8)


def test_an_unknown_eviction_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="lru, lfu, priority"):
        KVCache(num_blocks=4, eviction_policy="random")


def test_eviction_never_takes_a_block_in_use() -> None:
    driver = Driver(num_blocks=6)
    driver.serve(TEXT[:8])
    reader = driver.open(TEXT[:9])
    other = driver.open([1] * 20)
    with pytest.raises(KVPoolExhaustedError, match="needs 5 more KV blocks; 4 free and 0 evictable of 6"):
        driver.cache.grow(other, num_tokens=20, write_from=0)
    assert other.block_ids == []
    check_invariants(driver.cache)
    assert driver.hit(TEXT[:8]) == 8
    driver.close(reader)
    driver.compute(other, [1] * 20, write_from=0)
    assert driver.hit(TEXT[:8]) == 4


def evict_other_than(driver: Driver, kept: list[int]) -> None:
    """Take the place of a younger prefix: eviction comes past the older, used one."""
    driver.serve([7] * 8)
    table = driver.open([8])
    num_tokens = (driver.cache.num_free_blocks + 2) * driver.cache.block_size
    driver.cache.grow(table, num_tokens=num_tokens, write_from=0)
    driver.close(table)
    assert driver.hit([7] * 8) == 0
    assert driver.hit(kept) == len(kept)


@pytest.mark.parametrize("writes", [False, True])
def test_a_block_that_was_shared_in_part_can_be_evicted_afterwards(writes: bool) -> None:
    driver = Driver(num_blocks=8)
    driver.serve(TEXT[:8])
    table = driver.open(TEXT[:8])  # ends inside the second block
    evict_other_than(driver, TEXT[:8])
    if writes:
        driver.cache.grow(table, num_tokens=8, write_from=7)
        check_invariants(driver.cache)
    driver.close(table)
    driver.serve([1] * 32)
    assert driver.hit(TEXT[:8]) == 0


def test_a_block_that_a_fork_shared_in_part_can_be_evicted_afterwards() -> None:
    driver = Driver(num_blocks=8)
    parent = driver.open(TEXT[:8])
    driver.compute(parent, TEXT[:8], write_from=0)
    child = driver.cache.fork(RequestId("child"), parent, num_tokens=7)
    driver.close(parent)
    evict_other_than(driver, TEXT[:8])
    driver.close(child)
    driver.serve([1] * 32)
    assert driver.hit(TEXT[:8]) == 0


def test_blocks_used_before_are_handed_out_before_untouched_ones() -> None:
    driver = Driver(num_blocks=100, enable_prefix_caching=False)
    for start in range(10):
        driver.serve(TEXT[start : start + 12])
    table = driver.open(TEXT[:12])
    driver.compute(table, TEXT[:12], write_from=0)
    assert max(table.block_ids) < 3


def test_without_prefix_caching_nothing_is_shared_or_kept() -> None:
    driver = Driver(enable_prefix_caching=False)
    driver.serve(TEXT[:12])
    assert driver.hit(TEXT[:12]) == 0
    assert driver.cache.num_free_blocks == driver.cache.num_total_blocks


def test_different_domains_share_no_block() -> None:
    driver = Driver()
    mine, theirs = KeyDomain(b"mine"), KeyDomain(b"theirs")
    driver.serve(TEXT[:8], mine)
    assert driver.hit(TEXT[:8], mine) == 8
    assert driver.hit(TEXT[:8], theirs) == driver.hit(TEXT[:8]) == 0
    owner = driver.open(TEXT[50:58], mine)
    for domain, pending in ((mine, 8), (theirs, 0)):
        match = driver.cache.match(domain, pack_token_ids(TEXT[50:58]), max_tokens=8)
        assert match.num_pending_tokens == pending, "waiting for a prefix also tells that it is there"
    driver.close(owner)


def test_domains_that_hold_nothing_any_more_take_no_memory() -> None:
    driver = Driver(num_blocks=4)
    for number in range(50):
        driver.serve(TEXT[:8], KeyDomain(b"%d" % number))
    assert len(driver.cache.tree.roots) == 2


def test_no_hit_is_left_after_every_block_was_evicted() -> None:
    driver = Driver(num_blocks=8)
    driver.serve(TEXT[:16])
    driver.serve([*TEXT[:8], 1, 2, 3, 4])
    table = driver.open([9] * 32)
    driver.cache.grow(table, num_tokens=32, write_from=0)
    assert [driver.hit(TEXT[:n]) for n in (4, 8, 16)] == [0, 0, 0], "their blocks are being written"
    driver.close(table)
    assert driver.hit([9] * 32) == 0, "blocks taken, but never computed"


def test_reset_forgets_all_that_no_request_holds() -> None:
    driver = Driver(record_events=True)
    driver.serve(TEXT[:8])
    reader = driver.open([*TEXT[:4], 1, 2])
    assert not driver.cache.reset()
    assert driver.hit(TEXT[:8]) == 4
    driver.close(reader)
    assert driver.cache.reset()
    assert driver.hit(TEXT[:8]) == 0
    assert driver.cache.num_free_blocks == driver.cache.num_total_blocks
    assert driver.cache.drain_events()[-1] == AllBlocksCleared()


def test_events_tell_what_can_be_found_and_in_which_domain() -> None:
    driver = Driver(num_blocks=4, record_events=True)
    domain = KeyDomain(b"mine")
    driver.serve(TEXT[:8], domain)
    driver.serve(TEXT[:12], domain)
    assert driver.cache.drain_events() == [
        BlockStored(domain, None, pack_token_ids(TEXT[:8]), [0, 1]),
        BlockStored(domain, 1, pack_token_ids(TEXT[8:12]), [2]),
    ]
    driver.serve([1] * 12)
    removed, stored = driver.cache.drain_events()
    assert removed == BlockRemoved([1, 2])
    assert isinstance(stored, BlockStored)
    assert driver.cache.drain_events() == []


def test_hits_are_counted_in_tokens_at_admission() -> None:
    driver = Driver()
    driver.serve(TEXT[:8])
    driver.hit(TEXT[:8])
    driver.serve(TEXT[:8])
    assert (driver.cache.num_queried_tokens, driver.cache.num_hit_tokens) == (16, 7)


def test_aborts_in_every_state_leave_no_block_behind() -> None:
    driver = Driver()
    driver.serve(TEXT[:8])
    tables = [driver.open(TEXT[:20]) for _ in range(3)]  # one matched, one grown, one computed in part
    driver.cache.grow(tables[1], num_tokens=20, write_from=8)
    driver.compute(tables[2], TEXT[:13], write_from=8)
    tables.append(driver.cache.fork(RequestId("fork"), tables[2], num_tokens=13))
    for table in tables:
        driver.close(table)
    assert driver.cache.num_available_blocks == driver.cache.num_total_blocks
    assert not driver.cache.claims.owners()
