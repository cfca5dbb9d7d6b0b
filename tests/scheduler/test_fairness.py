"""Who goes first: queue orders, long prompts beside streams, nobody starves."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.fakes.engine_world import World, request

from kvist.config.scheduler_config import POLICIES, QUEUE_ORDERS
from kvist.core.request_events import Finished, Scheduled, TokensSampled


def start_order(world: World) -> list[str]:
    return [event.request_id for event in world.of_type(Scheduled)]


def largest_gap(world: World, request_id: str) -> float:
    times = [event.time_s for event in world.of_type(TokensSampled) if event.request_id == request_id]
    return max(after - before for before, after in pairwise(times))


@pytest.mark.parametrize("policy", ["chunked_prefill", "split_fuse", "decode_first"])
def test_a_long_prompt_does_not_pause_running_streams(policy: str) -> None:
    world = World(budget=64, config={"policy": policy})
    streams = [request(f"s{index}", 16, max_tokens=60) for index in range(4)]
    world.run(*streams, request("long", 1500, max_tokens=4, at=5.0))
    assert max(largest_gap(world, f"s{index}") for index in range(4)) == 1.0  # a token in every step
    assert "long" in world.outputs()


def test_prefill_first_pauses_streams_which_is_its_known_price() -> None:
    world = World(budget=64, config={"policy": "prefill_first"})
    world.run(request("s", 16, max_tokens=60), request("long", 640, max_tokens=4, at=5.0))
    assert largest_gap(world, "s") >= 10.0


def test_short_prompts_overtake_a_long_one_under_a_prefill_threshold() -> None:
    def first_token_s(threshold: int) -> float:
        world = World(budget=64, num_blocks=1024, config={"long_prefill_token_threshold": threshold})
        world.run(request("long", 2000, max_tokens=1), request("short", 20, max_tokens=1, at=0.5))
        ends = {event.request_id: event.time_s for event in world.of_type(Finished)}
        assert ends["long"] <= 2000 / (threshold or 64) + 2  # bounded for the long one too
        return ends["short"]

    assert first_token_s(48) <= 3.0
    assert first_token_s(0) >= 30.0


def test_fcfs_starts_in_order_of_arrival() -> None:
    world = World(config={"max_num_seqs": 1})
    world.run(*(request(f"r{index}", 100 - index * 9, at=index * 0.1) for index in range(9)))
    assert start_order(world) == [f"r{index}" for index in range(9)]


def test_lower_priority_numbers_start_first() -> None:
    world = World(config={"max_num_seqs": 1, "queue_order": "priority"})
    world.run(request("first"), *(request(f"p{p}", priority=p, at=0.5) for p in (2, 0, 1, -1)))
    assert start_order(world) == ["first", "p-1", "p0", "p1", "p2"]


def test_the_lowest_class_has_a_finite_wait_under_constant_high_load() -> None:
    world = World(config={"max_num_seqs": 1, "queue_order": "priority", "ageing_s": 10.0})
    urgent = [request(f"u{index}", 16, max_tokens=4, at=index * 3.0) for index in range(60)]
    world.run(*urgent, request("low", 16, priority=4, at=1.0))
    started = {event.request_id: event.time_s for event in world.of_type(Scheduled)}
    # 4 levels are worth 40 s; then those that came in the meantime and before it are served.
    assert started["low"] <= 1.0 + 4 * 10.0 + 20.0
    assert started["low"] > 20.0


def test_shortest_prefill_first_starts_short_prompts_first_and_long_ones_in_bounded_time() -> None:
    world = World(budget=64, config={"max_num_seqs": 1, "queue_order": "shortest_prefill_first", "ageing_s": 30.0})
    shorts = [request(f"s{index:02}", 8, max_tokens=4, at=1.0 + index * 3.0) for index in range(40)]
    world.run(request("first", 8), request("long", 60, max_tokens=2, at=0.5), *shorts)
    started = {event.request_id: event.time_s for event in world.of_type(Scheduled)}
    assert started["s00"] < started["long"]
    assert started["long"] <= 45.0


def test_longest_prefix_match_groups_requests_by_prefix_and_starves_nobody() -> None:
    prefixes = {name: [ord(name) * 1000 + index for index in range(64)] for name in "ab"}
    world = World(config={"max_num_seqs": 1, "queue_order": "lpm", "ageing_s": 1000.0})
    world.run(request("warm", [*prefixes["a"], 1]))
    mixed = [request(f"{name}{index}", [*prefixes[name], index], at=60.0) for index in range(4) for name in "ba"]
    world.run(*mixed)
    assert start_order(world)[1:] == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
    world = World(config={"max_num_seqs": 1, "queue_order": "lpm", "ageing_s": 20.0})
    world.run(request("warm", [*prefixes["a"], 1]))
    hits = [request(f"a{index}", [*prefixes["a"], index], at=60.0 + 4 * index) for index in range(40)]
    world.run(request("cold", [*prefixes["b"], 1], at=60.5), *hits)
    started = {event.request_id: event.time_s for event in world.of_type(Scheduled)}
    assert 68.0 <= started["cold"] <= 95.0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("queue_order", QUEUE_ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_waits_for_ever_under_a_load_that_can_be_served(policy: str, queue_order: str, depth: int) -> None:
    world = World(
        budget=64,
        num_blocks=64,
        depth=depth,
        config={"policy": policy, "queue_order": queue_order, "max_num_seqs": 8, "ageing_s": 20.0},
    )
    # Every policy needs well under 12 steps of one second for each of these.
    load = [
        request(f"r{index:02}", 10 + index * 37 % 150, max_tokens=2 + index % 5, at=index * 12.0, priority=index % 3)
        for index in range(25)
    ]
    world.run(*load)
    ends = {event.request_id: event.time_s for event in world.of_type(Finished)}
    assert max(ends[new.request_id] - new.arrival_time_s for new in load) < 60.0
