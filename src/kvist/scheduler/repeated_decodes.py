"""Steps that only repeat the last one, each request one token further: found, and taken many at a time.

While nobody arrives, ends, needs a block or fills one, the plan of a step of decodes follows from the one before it. A
simulation of hours is made of such steps; taking them together changes no plan, which a twin test holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvist.core.request import RequestId
from kvist.scheduler.admission import StartRate
from kvist.scheduler.candidates import CandidateSource
from kvist.scheduler.preemption import GrowthReserve
from kvist.scheduler.scheduler_state import SchedulerState
from kvist.scheduler.step_planner import StepPlanner


class RepeatedDecodes:
    """Looks at the scheduler between two steps. Nothing may be open, and nothing may have come in since."""

    def __init__(
        self,
        state: SchedulerState,
        planner: StepPlanner,
        candidates: CandidateSource,
        reserve: GrowthReserve,
        start_rate: StartRate,
    ) -> None:
        self._state = state
        self._planner = planner
        self._candidates = candidates
        self._reserve = reserve
        self._start_rate = start_rate

    @property
    def request_ids(self) -> list[RequestId]:
        """Who decodes, in the order of the plans' rows."""
        return [request.id for request in self._state.running.decoding]

    @property
    def num_keys(self) -> int:
        """Keys that the next step's rows read, all together; each further step reads one more for each row."""
        decoding = self._state.running.decoding
        return sum([request.num_computed_tokens for request in decoding]) + len(decoding)

    def num_steps(self, *, num_free_places: int) -> int:
        """How many next steps are certain to decode exactly those that decode now, and to change nothing else."""
        state = self._state
        running, queue = state.running, state.queue
        is_quiet = not (running.prefilling or state.open_steps or state.dropped or state.joined or state.events)
        if not is_quiet or not running.decoding or len(running.decoding) != len(running):
            return 0
        if num_free_places > 0 and len(queue) and not self._candidates.is_still_refused():
            return 0
        if state.handover.arrived or not (num_free_places <= 0 or self._planner.has_refused_kv()):
            return 0
        if state.handover.has_leases:
            return 0
        num_steps = 2**31
        for request in running.decoding:
            num_computed = request.num_computed_tokens
            num_left = min(request.attention_position, request.attention_computed - 1) - num_computed
            if num_left < num_steps:
                if num_left <= 0:
                    return 0
                num_steps = num_left
            if request.stop_ids:
                return 0
        return num_steps

    def advance(self, tokens: Sequence[int], step_times_s: Sequence[float]) -> None:
        """Take as many steps as there are times, at most `num_steps`. tokens: what each row always samples."""
        num_steps = len(step_times_s)
        for request, token in zip(self._state.running.decoding, tokens, strict=True):
            request.num_computed_tokens += num_steps
            request.token_ids.extend(array("i", (token,)) * num_steps)
        self._reserve.note_steps(num_steps)
        self._start_rate.note_steps_without_starts(step_times_s)
        self._planner.skip_steps(num_steps)
