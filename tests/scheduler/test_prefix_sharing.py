"""Prefixes shared while they are still being computed, and samples that fork from one prompt."""

from __future__ import annotations

import pytest
from tests.fakes.engine_world import World, request

from kvist.core.request import FinishReason

pytestmark = pytest.mark.parametrize("depth", [1, 2])
PREFIX = list(range(5_000, 5_320))  # 20 blocks


def computed_tokens(world: World) -> int:
    return sum(plan.num_total_tokens for plan in world.driver.plans)


@pytest.mark.parametrize("policy", ["prefill_first", "decode_first", "chunked_prefill", "split_fuse"])
def test_32_simultaneous_requests_with_one_shared_prefix_compute_it_once(depth: int, policy: str) -> None:
    world = World(depth=depth, budget=64, config={"policy": policy})
    world.run(*(request(f"r{index}", [*PREFIX, index], max_tokens=4) for index in range(32)))
    assert computed_tokens(world) == len(PREFIX) + 32 * (1 + 3)
    assert sorted(world.cached().values()) == [0] + [len(PREFIX)] * 31
    assert len(set(map(tuple, world.outputs().values()))) == 1
    world.assert_at_rest()


def test_requests_that_wait_for_a_prefix_do_not_hold_up_others(depth: int) -> None:
    world = World(depth=depth, budget=96, config={"long_prefill_token_threshold": 64})
    world.run(
        request("owner", [*PREFIX, 1]), request("waiter", [*PREFIX, 2]), request("other", 32, max_tokens=2), until_s=4
    )
    assert "other" in world.finished()
    assert "waiter" not in world.cached()


def test_tokens_are_not_granted_to_one_who_would_wait(depth: int) -> None:
    world = World(depth=depth, budget=96)
    world.run(request("owner", [*PREFIX[:64], 1]), request("waiter", [*PREFIX[:64], 2]), request("other", 64))
    assert world.step_tokens()[0] == {"owner": 65, "other": 31}


def test_those_who_wait_go_on_when_the_owner_is_aborted(depth: int) -> None:
    world = World(depth=depth, budget=64)
    world.driver.abort_at(2.5, "owner")  # type: ignore[arg-type]
    world.run(*(request(id_, [*PREFIX, 1], max_tokens=4) for id_ in ("owner", "second", "third")))
    assert world.reasons() == {
        "owner": FinishReason.ABORT,
        "second": FinishReason.LENGTH,
        "third": FinishReason.LENGTH,
    }
    # What the owner had computed is reused, the rest is computed once more and shared again.
    assert 0 < world.cached()["second"] < len(PREFIX)
    assert world.cached()["third"] == len(PREFIX)
    world.assert_at_rest()


def test_the_wait_for_a_stalled_owner_is_bounded(depth: int) -> None:
    world = World(depth=depth, budget=16, config={"policy": "static", "max_num_seqs": 2})
    # The static batch of one runs for long after its prompt is computed; its output blocks are nobody's wait.
    world.run(request("owner", [*PREFIX, 1], max_tokens=100), request("waiter", [*PREFIX, 2], max_tokens=2))
    assert world.reasons() == {"owner": FinishReason.LENGTH, "waiter": FinishReason.LENGTH}


def test_without_a_prefix_cache_nobody_waits_and_everything_is_computed(depth: int) -> None:
    world = World(depth=depth, budget=64, enable_prefix_caching=False)
    world.run(*(request(f"r{index}", PREFIX[:64], max_tokens=1) for index in range(4)))
    assert computed_tokens(world) == 4 * 64
    world = World(depth=depth, budget=256, enable_prefix_caching=False)
    world.run(*(request(f"r{index}", PREFIX[:64], max_tokens=1) for index in range(4)))
    assert len(world.driver.plans) == 1


def test_other_domains_and_requests_that_skip_the_cache_share_nothing(depth: int) -> None:
    world = World(depth=depth)
    prompt = PREFIX[:64]
    world.run(request("a", prompt, domain=b"one"), request("b", prompt, domain=b"two"))
    world.run(request("c", prompt, domain=b"one", skip_reading_prefix_cache=True, at=50.0))
    world.run(request("d", prompt, domain=b"one", at=100.0))
    assert world.cached() == {"a": 0, "b": 0, "c": 0, "d": 63}


@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 65])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_samples_share_the_blocks_of_their_prompt(depth: int, length: int, enable_prefix_caching: bool) -> None:
    world = World(depth=depth, budget=16, enable_prefix_caching=enable_prefix_caching)
    prompt = PREFIX[:length]
    world.run(
        *(
            request(f"s{index}", prompt, max_tokens=20, sample_index=index, fork_of="s0" if index else None)
            for index in range(5)
        )
    )
    # Each sample computes the last prompt token itself: it needs its own logits.
    assert computed_tokens(world) == length + 4 + 5 * 19
    assert world.cached() == {"s0": 0, **{f"s{index}": length - 1 for index in range(1, 5)}}
    assert len(set(map(tuple, world.outputs().values()))) == 5
    world.assert_at_rest()


def test_samples_go_on_alone_when_their_first_one_is_gone(depth: int) -> None:
    world = World(depth=depth, budget=16)
    world.driver.abort_at(1.5, "s0")  # type: ignore[arg-type]
    world.run(
        *(request(f"s{index}", PREFIX[:64], sample_index=index, fork_of="s0" if index else None) for index in range(3)),
        request("orphan", PREFIX[:64], sample_index=3, fork_of="unknown"),
    )
    assert {id_: len(tokens) for id_, tokens in world.outputs().items()} == {"s1": 8, "s2": 8, "orphan": 8}
    world.assert_at_rest()


def test_a_sample_shares_nothing_with_another_prompt_or_another_domain(depth: int) -> None:
    world = World(depth=depth)
    world.run(
        request("s0", PREFIX[:64], domain=b"one"),
        request("prompt", PREFIX[1:65], sample_index=1, fork_of="s0", domain=b"one"),
        request("domain", PREFIX[:64], sample_index=1, fork_of="s0", domain=b"two"),
    )
    assert world.cached() == {"s0": 0, "prompt": 0, "domain": 0}
    assert len(world.finished()) == 3


def test_a_first_sample_that_ends_at_once_leaves_the_others_its_cached_prompt(depth: int) -> None:
    world = World(depth=depth)
    world.run(
        request("s0", PREFIX[:64], max_tokens=1),
        request("s1", PREFIX[:64], max_tokens=1, sample_index=1, fork_of="s0"),
    )
    assert world.cached() == {"s0": 0, "s1": 63}


def test_a_group_of_samples_is_not_cut_by_the_queue_bound(depth: int) -> None:
    world = World(depth=depth, config={"max_num_queued_reqs": 1, "max_num_seqs": 1})
    world.run(
        *(
            request(f"s{index}", sample_index=index, fork_of="s0" if index else None, prompt=PREFIX[:20])
            for index in range(8)
        )
    )
    assert len(world.finished()) == 8
    assert world.driver.rejected == []
