"""An executor for simulations at scale: it knows how long a step takes and nothing of blocks.

Each request answers with one token of its own, told by its seed. `SimulatedExecutor` is the strict one, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.core.request import RequestId
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork, work_of_plan
from kvist.simulator.links import NS_PER_S
from kvist.simulator.trace_prompts import answer_token


@dataclass(frozen=True, slots=True)
class TimedStep:
    """The handle of a step."""

    duration_ns: int
    work: StepWork
    result: StepResult


def duration_ns(step_time: StepTimeModel, work: StepWork) -> int:
    """The predicted time in whole nanoseconds, at least one: time must pass."""
    return max(round(step_time.predict_s(work) * NS_PER_S), 1)


class TimedExecutor:
    """Obeys the Executor contract for requests without stop tokens or drafts."""

    def __init__(self, *, num_blocks: int, step_time: StepTimeModel) -> None:
        self._num_blocks = num_blocks
        self._step_time = step_time
        self._answers: dict[RequestId, tuple[int, ...]] = {}

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    def begin_step(self, plan: StepPlan) -> TimedStep:
        answers = self._answers
        for request_id in plan.dropped_request_ids:
            answers.pop(request_id, None)
        for new in plan.new_requests:
            answers[new.request_id] = (answer_token(new.sampling.seed or 0),)
        sampled: list[Sequence[int]] = [
            answers[request_id] if samples else ()
            for request_id, samples in zip(plan.request_ids, plan.samples, strict=True)
        ]
        work = _work_of(plan)
        return TimedStep(duration_ns(self._step_time, work), work, StepResult(plan.step_id, sampled))

    def finish_step(self, handle: TimedStep) -> StepResult:
        return handle.result

    def answers(self, request_ids: Sequence[RequestId]) -> list[int]:
        """The tokens that these requests always answer with."""
        return [self._answers[request_id][0] for request_id in request_ids]

    def close(self) -> None:
        self._answers.clear()


def _work_of(plan: StepPlan) -> StepWork:
    num_rows = len(plan.request_ids)
    if plan.num_total_tokens == num_rows and not plan.num_padding_tokens:  # decodes alone, by far the most frequent
        return StepWork(
            num_tokens=num_rows,
            num_sequences=num_rows,
            num_sampled=sum(plan.samples),
            decode_context_tokens=sum(plan.start_positions) + num_rows,
        )
    return work_of_plan(plan)
