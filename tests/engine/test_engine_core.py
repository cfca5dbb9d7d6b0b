"""Failures inside a step end that step's requests and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fakes.engine_world import World, request

from kvist.core.request import FinishReason, RequestId
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.simulator.simulated_executor import SimulatedStep

both_depths = pytest.mark.parametrize("depth", [1, 2])


class Faults:
    """Stands between core and executor and spoils chosen steps."""

    def __init__(
        self, world: World, *, begin: tuple[int, ...] = (), result: Callable[[StepResult], None] | None = None
    ):
        self._inner = world.executor
        self._begin = begin
        self._result = result
        world.core._executor = self  # type: ignore[assignment]

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    def begin_step(self, plan: StepPlan) -> SimulatedStep:
        if plan.step_id in self._begin:
            raise MemoryError("out of workspace")
        return self._inner.begin_step(plan)

    def finish_step(self, handle: SimulatedStep) -> StepResult:
        if self._result is not None:
            self._result(handle.result)
        return handle.result

    def close(self) -> None:
        self._inner.close()


@both_depths
def test_a_step_that_raises_fails_its_requests_frees_their_blocks_and_serving_goes_on(depth: int) -> None:
    world = World(depth=depth)
    Faults(world, begin=(2,))
    world.run(request("a"), request("b"), request("late", at=20.0))
    assert world.reasons() == {"a": FinishReason.ERROR, "b": FinishReason.ERROR, "late": FinishReason.LENGTH}
    assert "out of workspace" in world.finished()["a"].error
    world.assert_at_rest()


@both_depths
def test_a_failed_step_spares_requests_that_were_not_in_it(depth: int) -> None:
    world = World(depth=depth, budget=16, config={"policy": "prefill_first"})
    Faults(world, begin=(3,))  # a step that holds only a chunk of the long prompt
    world.run(request("stream", 8, max_tokens=10), request("long", 64, at=1.5))
    assert world.reasons() == {"stream": FinishReason.LENGTH, "long": FinishReason.ERROR}


@both_depths
def test_an_error_of_one_row_fails_that_request_alone_and_its_block_is_not_cached(depth: int) -> None:
    world = World(depth=depth)

    def spoil(result: StepResult) -> None:
        if result.step_id == 0:
            result.sampled_token_ids[0] = []
            result.errors[RequestId("a")] = "the logits are not finite"

    Faults(world, result=spoil)
    world.run(request("a", list(range(40))), request("b", 40))
    assert world.reasons() == {"a": FinishReason.ERROR, "b": FinishReason.LENGTH}
    assert world.finished()["a"].error == "the logits are not finite"
    world.run(request("again", list(range(40)), at=50.0))
    assert world.cached()["again"] == 0
    world.assert_at_rest()


@both_depths
def test_a_chunk_that_failed_leaves_no_block_in_the_cache(depth: int) -> None:
    world = World(depth=depth, budget=16)

    def spoil(result: StepResult) -> None:
        if result.step_id == 0:
            result.errors[RequestId("a")] = "the keys are not finite"

    Faults(world, result=spoil)
    world.run(request("a", list(range(40))))
    world.run(request("again", list(range(40)), at=50.0))
    assert world.cached()["again"] == 0


@both_depths
def test_what_the_executor_was_to_forget_in_a_failed_step_is_told_again(depth: int) -> None:
    world = World(depth=depth)
    world.run(request("a"))
    failing = world.driver.plans[-1].step_id + 1
    Faults(world, begin=(failing,))
    world.run(request("b", at=50.0))
    assert world.driver.plans[-1].dropped_request_ids == ["a"]
    world.run(request("c", at=100.0))
    assert set(world.driver.plans[failing + 1].dropped_request_ids) == {"a", "b"}
    assert world.executor.num_known_requests == 1


@both_depths
def test_a_result_of_the_wrong_shape_fails_the_step(depth: int) -> None:
    world = World(depth=depth)

    def spoil(result: StepResult) -> None:
        if result.step_id == 1:
            result.sampled_token_ids.append([7])

    Faults(world, result=spoil)
    world.run(request("a"))
    assert world.reasons() == {"a": FinishReason.ERROR}
    world.assert_at_rest()


@both_depths
def test_the_executor_forgets_every_request_in_the_end(depth: int) -> None:
    world = World(depth=depth)
    Faults(world, begin=(3,))
    world.run(*(request(f"r{index}", at=float(index)) for index in range(10)))
    world.run(request("last", at=100.0))
    world.run(request("after", at=200.0))
    assert world.executor.num_known_requests == 1


@both_depths
def test_waiting_for_a_step_twice_gives_the_same_result(depth: int) -> None:
    world = World(depth=depth)
    world.core.add_request(request("a", max_tokens=1), 0.0)
    step = world.core.begin(0.0)
    assert step is not None
    world.core.wait(step)
    result = step.result
    world.core.wait(step)
    assert step.result is result
    batch = world.core.finish(step, 2.0, 1.5)
    assert batch.step is not None
    assert batch.step.step_time_s == 1.5
    assert not world.core.has_unfinished_requests
