"""The seam between deciding and computing: everything that runs a step plan."""

from __future__ import annotations

from typing import Any, Protocol

from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult

StepHandle = Any  # whatever begin_step needs to hand to finish_step; opaque to the engine


class Executor(Protocol):
    """Runs step plans in the order given. Owns weights, KV bytes and each request's tokens.

    At most `max_steps_in_flight` steps are open at once; they are finished in the order they were begun.
    An exception from either method fails the step as a whole: the engine then fails its requests and goes on.
    After a failed step the executor must accept `dropped_request_ids` for all of that step's requests.
    """

    @property
    def num_blocks(self) -> int:
        """Blocks that the KV storage holds."""
        ...

    def begin_step(self, plan: StepPlan) -> StepHandle:
        """Launch the step and return without waiting for it where the device allows."""
        ...

    def finish_step(self, handle: StepHandle) -> StepResult:
        """Wait for the step and return its result (`step_time_s` is the driver's to set)."""
        ...

    def close(self) -> None:
        """Free weights, KV bytes and threads. The executor is not used afterwards."""
        ...
