"""Small pools: preemption by recompute, guaranteed progress, no thrash."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.fakes.engine_world import BLOCK_SIZE, World, request

from kvist.config.scheduler_config import POLICIES, QUEUE_ORDERS
from kvist.core.request import FinishReason
from kvist.core.request_events import Finished, Preempted, Scheduled
from kvist.scheduler.preemption import GrowthReserve
from kvist.scheduler.tracked_request import track

pytestmark = pytest.mark.parametrize("depth", [1, 2])


def crowd(num_requests: int, prompt: int = 40, max_tokens: int = 200) -> list:
    return [request(f"r{index}", prompt, max_tokens=max_tokens, at=index * 0.01) for index in range(num_requests)]


def test_a_tiny_pool_preempts_finishes_everything_and_changes_no_output(depth: int) -> None:
    roomy = World(depth=depth, num_blocks=512)
    roomy.run(*crowd(8))
    tiny = World(depth=depth, num_blocks=24)
    tiny.run(*crowd(8))
    assert roomy.num_preemptions() == 0
    assert tiny.num_preemptions() > 0
    assert tiny.outputs() == roomy.outputs()
    tiny.assert_at_rest()


def test_preemptions_per_finished_request_are_bounded(depth: int) -> None:
    world = World(depth=depth, num_blocks=32)
    world.run(*crowd(16, max_tokens=250))
    finished = world.finished()
    assert len(finished) == 16
    assert max(event.num_preemptions for event in finished.values()) <= 4
    assert 0 < world.num_preemptions() <= 20


def test_admission_slows_down_before_anybody_is_preempted(depth: int) -> None:
    world = World(depth=depth, num_blocks=64)
    world.run(*crowd(40, max_tokens=64))  # as much as is expected of a request before anything is known
    assert world.num_preemptions() == 0
    assert max(len(step) for step in world.step_tokens()) < 12


def test_each_preemption_makes_admission_more_cautious_for_a_while(depth: int) -> None:
    reserve = GrowthReserve(BLOCK_SIZE)
    candidate = track(request("a", 10, max_tokens=1000), max_total_tokens=1010, rank=(0.0, depth), now=0.0)
    calm = reserve.growth_blocks(candidate, at_most=False)
    reserve.note_preempted()
    assert reserve.growth_blocks(candidate, at_most=False) == 2 * calm
    for _ in range(100):
        reserve.note_steps(1)
    assert reserve.growth_blocks(candidate, at_most=False) == calm
    assert reserve.growth_blocks(candidate, at_most=True) == 63


def test_admission_learns_how_long_outputs_are(depth: int) -> None:
    reserve = GrowthReserve(BLOCK_SIZE)
    candidate = track(request("a", 10, max_tokens=1000), max_total_tokens=1010, rank=(0.0, depth), now=0.0)
    for _ in range(100):
        reserve.note_finished(320)
    assert reserve.growth_blocks(candidate, at_most=False) == 20


def test_the_oldest_request_is_never_preempted(depth: int) -> None:
    world = World(depth=depth, num_blocks=24)
    world.run(*crowd(8))
    assert world.num_preemptions() > 0
    assert "r0" not in {event.request_id for event in world.of_type(Preempted)}


def test_the_latest_is_preempted_first_and_keeps_its_place(depth: int) -> None:
    world = World(depth=depth, num_blocks=24)
    world.run(*crowd(8))
    order = [event.request_id for event in world.of_type(Finished)]
    assert order == sorted(order)
    running: set[str] = set()
    for event in world.events:
        if isinstance(event, Scheduled):
            running.add(event.request_id)
        elif isinstance(event, Finished):
            running.discard(event.request_id)
        elif isinstance(event, Preempted):
            assert event.request_id == max(running)
            running.discard(event.request_id)


def test_with_priorities_the_lowest_class_is_preempted_first(depth: int) -> None:
    world = World(depth=depth, num_blocks=24, config={"queue_order": "priority", "ageing_s": 1e6})
    world.run(
        request("low", 40, max_tokens=200, priority=9),
        request("high", 40, max_tokens=200, priority=0, at=0.1),
        request("middle", 40, max_tokens=200, priority=5, at=0.2),
    )
    assert world.num_preemptions() > 0
    assert {event.request_id for event in world.of_type(Preempted)} <= {"low", "middle"}
    order = [event.request_id for event in world.of_type(Finished)]
    assert order == ["high", "middle", "low"]


def test_a_request_that_fills_the_pool_alone_runs_though_its_cached_prefix_ends_inside_a_block(depth: int) -> None:
    world = World(depth=depth, num_blocks=4)
    world.run(request("warm", list(range(20)), max_tokens=4))
    world.run(request("full", [*range(18), *range(900, 935)], max_tokens=11, at=50.0))
    assert world.reasons() == {"warm": FinishReason.LENGTH, "full": FinishReason.LENGTH}


@pytest.mark.parametrize("sampling", [{}, {"prompt_logprobs": 0}])
def test_a_request_that_computes_a_cached_prompt_again_does_not_starve_of_the_copies(
    depth: int, sampling: dict[str, int]
) -> None:
    world = World(depth=depth, num_blocks=6)
    world.run(request("warm", list(range(48)), max_tokens=2))
    world.run(
        request(
            "again", list(range(48)), max_tokens=40, at=50, skip_reading_prefix_cache=not sampling, sampling=sampling
        )
    )
    assert world.reasons() == {"warm": FinishReason.LENGTH, "again": FinishReason.LENGTH}
    world.assert_at_rest()


def test_a_large_request_is_not_overtaken_for_ever_by_small_ones(depth: int) -> None:
    world = World(depth=depth, num_blocks=16)
    stream = [request(f"s{index:03}", 30, max_tokens=30, at=index * 4.0) for index in range(100)]
    world.run(*stream, request("large", 200, max_tokens=30, at=20.0))
    ends = {event.request_id: event.time_s for event in world.of_type(Finished)}
    assert ends["large"] < 200.0
    assert all(first <= second for first, second in pairwise(ends.values()))


def test_cached_tokens_are_those_of_the_first_admission(depth: int) -> None:
    world = World(depth=depth, num_blocks=24)
    world.run(*crowd(8))
    assert all(event.num_cached_tokens == 0 for event in world.finished().values())


def test_a_request_that_computes_what_is_cached_needs_no_more_than_the_pool(depth: int) -> None:
    world = World(depth=depth, num_blocks=6)
    prompt = list(range(70))
    world.run(
        request("first", prompt[:20], max_tokens=1),
        request("again", prompt, max_tokens=26, at=10.0, skip_reading_prefix_cache=True),
        until_s=200.0,
    )
    assert {id_: len(tokens) for id_, tokens in world.outputs().items()} == {"first": 1, "again": 26}
    assert world.num_preemptions() == 0
    world.assert_at_rest()


@pytest.mark.parametrize("order", QUEUE_ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_from_two_blocks_with_a_budget_of_one(depth: int, policy: str, order: str) -> None:
    world = World(
        depth=depth,
        num_blocks=2,
        budget=BLOCK_SIZE,
        max_model_len=2 * BLOCK_SIZE,
        config={"policy": policy, "queue_order": order},
    )
    world.run(
        *crowd(3, prompt=20, max_tokens=11),
        *(request(f"short-{index}", 1 + index, max_tokens=5, at=0.5 * index) for index in range(4)),
        request("shared", [7] * 16, max_tokens=9, at=2.0),
        request("shared again", [7] * 16, max_tokens=9, at=2.0),
    )
    assert {event.reason for event in world.finished().values()} == {FinishReason.LENGTH}
    assert len(world.finished()) == 9
    world.assert_at_rest()
