"""An abort in any state frees everything at once."""

from __future__ import annotations

import pytest
from tests.fakes.engine_world import World, request

from kvist.config.scheduler_config import POLICIES
from kvist.core.request import FinishReason, RequestId
from kvist.core.request_events import Finished

PREFIX = list(range(200))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("at", [0.0, 0.5, 1.5, 2.5, 4.5, 9.5, 40.5])
def test_aborting_everything_at_any_time_leaves_nothing_held(depth: int, policy: str, at: float) -> None:
    """Among them: queued, waiting for a prefix, in the middle of a prompt, decoding, preempted, samples."""
    world = World(depth=depth, budget=48, num_blocks=32, max_model_len=400, config={"policy": policy})
    requests = [
        *(request(f"shared{index}", [*PREFIX, index], max_tokens=150) for index in range(4)),
        *(request(f"own{index}", 40, max_tokens=150) for index in range(4)),
        *(
            request(f"s{index}", PREFIX[50:80], sample_index=index, fork_of="s0" if index else None)
            for index in range(3)
        ),
    ]
    for new in requests:
        world.driver.abort_at(at, new.request_id)
    world.run(*requests)
    assert len(world.finished()) == len(requests)
    assert FinishReason.ERROR not in world.reasons().values()
    world.assert_at_rest()
    world.run(request("next", at=5000.0))
    assert world.reasons()["next"] is FinishReason.LENGTH


def test_an_abort_answers_with_the_last_event_and_a_second_one_does_nothing() -> None:
    world = World()
    world.core.add_request(request("a"), 0.0)
    events = world.core.abort_request(RequestId("a"), 1.0)
    assert [type(event) for event in events] == [Finished]
    assert world.core.abort_request(RequestId("a"), 1.0) == []


def test_after_eviction_of_every_block_nothing_is_found_and_the_output_is_the_same() -> None:
    world = World(num_blocks=32)
    world.run(request("cold", PREFIX, max_tokens=20))
    assert world.core.reset_prefix_cache()
    world.run(request("again", PREFIX, max_tokens=20, at=100.0))
    assert world.cached()["again"] == 0
    world.run(request("flood", 480, max_tokens=20, at=200.0))  # takes every block
    world.run(request("after", PREFIX, max_tokens=20, at=300.0))
    assert world.cached()["after"] == 0
    outputs = world.outputs()
    assert outputs["cold"] == outputs["again"] == outputs["after"]
