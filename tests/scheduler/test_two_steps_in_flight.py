"""What is special when a step is planned before the one before it has answered."""

from __future__ import annotations

from tests.fakes.engine_world import BLOCK_SIZE, World, request

from kvist.core.request import FinishReason, RequestId
from kvist.core.request_events import TokensSampled
from kvist.engine.engine_core import OpenStep


def opened(world: World, now: float = 0.0) -> OpenStep:
    step = world.core.begin(now)
    assert step is not None
    return step


def row_of(step: OpenStep, request_id: str) -> tuple[int, int] | None:
    """(start, tokens) of the request in the step."""
    for row, id_ in enumerate(step.plan.request_ids):
        if id_ == request_id:
            return step.plan.start_positions[row], step.plan.num_scheduled_tokens[row]
    return None


def test_a_decode_is_planned_before_its_token_is_known() -> None:
    world = World(depth=2)
    world.core.add_request(request("a", 20), 0.0)
    first, second = opened(world), opened(world)
    assert world.core.begin(0.0) is None  # two are open
    assert row_of(first, "a") == (0, 20)
    assert row_of(second, "a") == (20, 1)
    assert first.plan.step_id + 1 == second.plan.step_id


def test_a_length_stop_known_ahead_is_not_planned_past() -> None:
    world = World(depth=2)
    world.core.add_request(request("a", 20, max_tokens=2), 0.0)
    first, second = opened(world), opened(world)
    world.core.finish(first, 1.0, 1.0)
    assert world.core.begin(1.0) is None  # its last token is on the way
    batch = world.core.finish(second, 2.0, 1.0)
    assert [type(event).__name__ for event in batch.events] == ["TokensSampled", "Finished"]
    world.assert_at_rest()


def test_a_stop_token_found_late_discards_the_surplus_token() -> None:
    world = World(depth=2, vocab_size=1)  # every token is 0
    world.core.add_request(request("a", 20, eos=(0,)), 0.0)
    first, second = opened(world), opened(world)
    assert world.core.finish(first, 1.0, 1.0).events[-1].reason is FinishReason.STOP  # type: ignore[union-attr]
    assert row_of(second, "a") is not None
    late = world.core.finish(second, 2.0, 1.0)
    assert late.events == []
    assert late.step is not None
    world.assert_at_rest()


def test_neither_a_surplus_token_nor_its_block_enters_the_tree() -> None:
    world = World(depth=2, vocab_size=1)
    prompt = list(range(1, BLOCK_SIZE))  # with the stop token it would fill a block
    world.core.add_request(request("a", prompt, eos=(0,)), 0.0)
    first, second = opened(world), opened(world)  # the second computes the stop token itself
    assert row_of(second, "a") == (BLOCK_SIZE - 1, 1)
    world.core.finish(first, 1.0, 1.0)
    world.core.finish(second, 2.0, 1.0)
    status = world.scheduler.status()
    assert (status.num_free_blocks, status.num_evictable_blocks) == (status.num_total_blocks, 0)


def test_blocks_of_a_request_stopped_late_may_be_reused_while_its_surplus_step_is_open() -> None:
    world = World(depth=2, vocab_size=1, num_blocks=3)
    world.core.add_request(request("a", 33, max_tokens=8, eos=(0,)), 0.0)
    first, surplus = opened(world), opened(world)
    world.core.add_request(request("b", 33, max_tokens=8), 0.5)
    world.core.finish(first, 1.0, 1.0)
    third = opened(world, 1.0)
    assert row_of(third, "b") == (0, 33)
    world.core.finish(surplus, 2.0, 1.0)
    world.core.finish(third, 3.0, 1.0)
    world.run(request("c", at=10.0))
    assert world.reasons() == {"b": FinishReason.LENGTH, "c": FinishReason.LENGTH}


def test_an_abort_with_both_steps_open_discards_both_answers() -> None:
    world = World(depth=2)
    world.core.add_request(request("a", 20), 0.0)
    world.core.add_request(request("b", 20), 0.0)
    first, second = opened(world), opened(world)
    world.core.abort_request(RequestId("a"), 0.5)
    batches = [world.core.finish(first, 1.0, 1.0), world.core.finish(second, 2.0, 1.0)]
    sampled = [event.request_id for batch in batches for event in batch.events if isinstance(event, TokensSampled)]
    assert sampled == ["b", "b"]
    assert opened(world, 2.0).plan.dropped_request_ids == ["a"]


def test_an_id_used_again_does_not_get_the_answers_of_the_request_before() -> None:
    world = World(depth=2)
    world.core.add_request(request("a", 20, sampling={"seed": 1}), 0.0)
    first, second = opened(world), opened(world)
    world.core.abort_request(RequestId("a"), 0.5)
    world.core.add_request(request("a", 20, sampling={"seed": 2}), 0.6)
    assert world.core.finish(first, 1.0, 1.0).events[-1:] == []
    third = opened(world, 1.0)
    assert third.plan.dropped_request_ids == ["a"]
    assert [new.request_id for new in third.plan.new_requests] == ["a"]
    assert world.core.finish(second, 2.0, 1.0).events[-1].request_id == "a"  # its start, not a token
    world.core.finish(third, 3.0, 1.0)
    world.run(request("other", at=10.0))
    world.assert_at_rest()


def test_a_request_preempted_with_a_token_on_the_way_samples_the_same_token_again() -> None:
    alone = World(depth=1)
    requests = [request(f"r{index}", 40, max_tokens=200, at=index * 0.01) for index in range(8)]
    alone.run(*requests)
    tiny = World(depth=2, num_blocks=24)
    tiny.run(*requests)
    assert tiny.num_preemptions() > 0
    assert tiny.outputs() == alone.outputs()


def test_a_failing_step_fails_its_requests_in_the_next_open_step_too() -> None:
    world = World(depth=2)
    world.core.add_request(request("a", 20), 0.0)
    first, second = opened(world), opened(world)
    first.error = "a fault"
    assert [event.request_id for event in world.core.finish(first, 1.0, 1.0).events] == ["a", "a"]
    assert world.core.finish(second, 2.0, 1.0).events == []
    world.assert_at_rest()


def test_nothing_is_begun_after_a_step_that_did_not_launch_until_its_requests_have_failed() -> None:
    world = World(depth=2)
    world.core.add_request(request("a", 20), 0.0)
    world.executor._sequences[RequestId("a")] = None  # type: ignore[assignment]  # the executor will refuse "a"
    failed = opened(world)
    assert failed.error is not None
    assert world.core.begin(0.0) is None
    world.core.finish(failed, 1.0, 1.0)
    world.run(request("b", at=2.0))
    assert world.reasons() == {"b": FinishReason.LENGTH}
