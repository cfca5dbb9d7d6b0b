"""The cluster's index says what each replica's tree holds, and nothing else."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.cluster.fair_queue import FairQueue
from kvist.cluster.prefix_index import PrefixIndex, prefix_keys
from kvist.core.request import PUBLIC_DOMAIN, KeyDomain, RequestId
from kvist.kvcache.kv_cache import KVCache
from kvist.kvcache.tiers import KVTier

BLOCK = 16
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=5)


def tokens(path: list[int]) -> bytes:
    """A prompt of whole blocks, each of one of two kinds."""
    return b"".join(array("i", [kind * 100 + depth] * BLOCK).tobytes() for depth, kind in enumerate(path))


def use(cache: KVCache, path: list[int], number: int) -> None:
    """Compute and cache a prompt, evicting others as needed."""
    packed = tokens(path)
    match = cache.match(PUBLIC_DOMAIN, packed, max_tokens=len(path) * BLOCK)
    table = cache.admit(RequestId(f"r{number}"), PUBLIC_DOMAIN, packed, match)
    cache.grow(table, num_tokens=len(path) * BLOCK, write_from=match.num_tokens)
    cache.commit(table, packed, num_computed_tokens=len(path) * BLOCK)
    cache.release(table)


@settings(max_examples=60, deadline=None)
@given(history=st.lists(st.tuples(st.integers(0, 2), prompts), max_size=25), asked=prompts)
def test_the_index_agrees_with_the_trees_it_is_told_about(
    history: list[tuple[int, list[int]]], asked: list[int]
) -> None:
    caches = [KVCache(num_blocks=6, block_size=BLOCK, record_events=True) for _ in range(3)]
    index = PrefixIndex(3, BLOCK)
    for number, (replica, path) in enumerate(history):
        use(caches[replica], path, number)
        index.apply(replica, caches[replica].drain_events())
    keys = prefix_keys(PUBLIC_DOMAIN, tokens(asked), BLOCK)
    expected = [
        cache.match(PUBLIC_DOMAIN, tokens(asked), max_tokens=len(asked) * BLOCK).num_tokens // BLOCK for cache in caches
    ]
    assert index.num_held_blocks(keys, 3) == expected
    for replica in range(3):
        index.clear(replica)
    assert len(index) == 0


def test_domains_share_nothing() -> None:
    assert not set(prefix_keys(KeyDomain(b"a"), tokens([0, 1]), BLOCK)) & set(
        prefix_keys(KeyDomain(b"b"), tokens([0, 1]), BLOCK)
    )


def test_a_tier_lets_go_of_the_ends_of_prompts_first() -> None:
    tier = KVTier(3)
    keys = prefix_keys(PUBLIC_DOMAIN, tokens([0, 0, 0, 0]), BLOCK)
    gone = tier.store(reversed(keys))
    assert gone == [keys[3]]
    assert tier.num_held_blocks(keys, 0) == 3
    tier.touch(keys)
    assert tier.store([b"other"]) == [keys[2]]


def test_a_tenant_that_comes_back_has_no_credit_from_its_absence() -> None:
    fair: FairQueue[str] = FairQueue()
    fair.charge("busy", num_prompt_tokens=1_000)
    fair.push("busy", "busy1")
    fair.push("back", "back1")
    fair.push("back", "back2")
    assert fair.served_tokens("back") == 1_000
    assert [fair.pop() for _ in range(3)] == ["busy1", "back1", "back2"]


def test_outputs_count_twice() -> None:
    fair: FairQueue[str] = FairQueue()
    fair.charge("a", num_prompt_tokens=10, num_output_tokens=5)
    assert fair.served_tokens("a") == 20
