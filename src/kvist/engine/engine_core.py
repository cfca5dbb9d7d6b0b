"""One engine: a scheduler that decides and an executor that computes, joined step by step.

Reads no clock: drivers pass `now`. The real-time driver and the event driver of the simulator run this same loop.
A step that raises fails the requests in it and nothing else.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from kvist.core.request import FinishReason, NewRequest, RequestId
from kvist.core.request_events import EventBatch, RequestEvent
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.engine.executor import Executor, StepHandle
from kvist.scheduler.scheduler import Scheduler
from kvist.scheduler.scheduler_status import SchedulerStatus

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class OpenStep:
    """A step between `begin` and `finish`. result or error is set once the executor has answered."""

    plan: StepPlan
    handle: StepHandle
    result: StepResult | None = None
    error: str | None = None


class EngineCore:
    """Owns scheduler and executor. All methods must be called from one thread.

    A driver's turn: add and abort what came in; `begin` steps while it returns any; then, for the oldest open step,
    `wait` (blocks until it is computed), read the clock, `finish`. When nothing is open, `take_events` hands out
    what came up without a step.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._has_failed_step = False  # a step that did not launch is open

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether any request is waiting or running."""
        return self._scheduler.num_requests > 0

    @property
    def max_steps_in_flight(self) -> int:
        return self._scheduler.max_steps_in_flight

    def status(self) -> SchedulerStatus:
        return self._scheduler.status()

    def add_request(self, new: NewRequest, now: float) -> list[RequestEvent]:
        """As `Scheduler.add_request`."""
        return self._scheduler.add_request(new, now)

    def abort_request(
        self, request_id: RequestId, now: float, *, reason: FinishReason = FinishReason.ABORT
    ) -> list[RequestEvent]:
        """As `Scheduler.abort_request`."""
        return self._scheduler.abort_request(request_id, now, reason=reason)

    def take_events(self, now: float) -> EventBatch:
        """Events that no finished step has carried; call it when `begin` returned None and no step is open."""
        return self._scheduler.take_events(now)

    def begin(self, now: float) -> OpenStep | None:
        """Plan a step and launch it. None if there is nothing to do, or as many steps are open as may be.

        A step that does not even launch comes back too: `finish` then fails its requests, in order.
        """
        if self._has_failed_step:
            return None  # its requests are failed first, or the next step would count on what it did not compute
        plan = self._scheduler.schedule(now)
        if plan is None:
            return None
        step = OpenStep(plan, None)
        try:
            step.handle = self._executor.begin_step(plan)
        except Exception as error:  # noqa: BLE001 - any failure of a step ends that step's requests only
            self._note_error(step, error)
            self._has_failed_step = True
        return step

    def wait(self, step: OpenStep) -> None:
        """Block until the executor has computed `step`. Never raises for what went wrong in it."""
        if step.result is not None or step.error is not None:
            return
        try:
            step.result = self._executor.finish_step(step.handle)
        except Exception as error:  # noqa: BLE001 - as above
            self._note_error(step, error)

    def finish(self, step: OpenStep, now: float, step_time_s: float) -> EventBatch:
        """Apply the result of the oldest open step and return all events since the last batch."""
        self.wait(step)
        self._has_failed_step = False
        if step.result is not None:
            step.result.step_time_s = step_time_s
            try:
                return self._scheduler.update_from_output(step.plan, step.result, now)
            except ValueError as error:  # a result that does not answer the plan
                self._note_error(step, error)
        return self._scheduler.fail_step(step.plan, step.error or "the step gave no result", now)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes that no request holds. Returns whether the cache is then empty."""
        return self._scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Close the executor. The engine is not used afterwards."""
        self._executor.close()

    def _note_error(self, step: OpenStep, error: Exception) -> None:
        step.error = f"step {step.plan.step_id} failed: {type(error).__name__}: {error}"
        logger.error(
            "step failed",
            extra={"step_id": step.plan.step_id, "num_requests": len(step.plan.request_ids)},
            exc_info=error,
        )
