"""An executor that has the operations of some steps timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.engine.executor import Executor, StepHandle
from kvist.metrics.step_record import OperationTime


class TimedExecutor(Executor, Protocol):
    """An executor that can tell where a step's time goes."""

    def time_next_step(self) -> None:
        """Time each operation of the next step that is begun."""
        ...

    def take_operation_times(self) -> Sequence[OperationTime]:
        """The times of the last step so timed, once; nothing if there are none to have."""
        ...


class SampledExecutor:
    """Runs steps on `inner`; while `every` is not 0, times each `every`-th step of a kind, the first one included.

    By kind, because steps with prompts are few and would seldom be hit.
    """

    def __init__(self, inner: TimedExecutor) -> None:
        self._inner = inner
        self._every = 0
        self._num_steps: Counter[tuple[bool, bool]] = Counter()
        self._times: dict[int, Sequence[OperationTime]] = {}  # by step

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    def sample(self, every: int) -> None:
        """Begin anew with this `every`."""
        self._every = every
        self._num_steps.clear()
        self._times.clear()

    def begin_step(self, plan: StepPlan) -> StepHandle:
        if not self._every or not self._is_next(plan):
            return self._inner.begin_step(plan)
        self._inner.time_next_step()
        return self._inner.begin_step(plan)

    def finish_step(self, handle: StepHandle) -> StepResult:
        result = self._inner.finish_step(handle)
        if self._every and (times := self._inner.take_operation_times()):
            self._times[result.step_id] = times
        return result

    def take_times(self, step_id: int) -> Sequence[OperationTime]:
        """The operations of a finished step, in the plan's order; nothing if it was not timed. Only once."""
        return self._times.pop(step_id, ())

    def close(self) -> None:
        self._inner.close()

    def _is_next(self, plan: StepPlan) -> bool:
        sizes = plan.num_scheduled_tokens
        kind = (max(sizes, default=0) > 1, min(sizes, default=0) == 1)
        self._num_steps[kind] += 1
        return self._num_steps[kind] % self._every == 1 % self._every
