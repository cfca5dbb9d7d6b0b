"""A profile whose steps take longer or shorter as the machine's speed changes during a run."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence

from kvist.bench.fidelity.steps_between import StepBetween
from kvist.bench.profile import LONGEST_SHARE
from kvist.core.request_events import EventBatch
from kvist.core.step_plan import StepPlan
from kvist.costmodel.profile_table import ProfileModel, ProfileTable
from kvist.costmodel.step_work import StepWork

NEIGHBOURS = 5  # timed steps that tell the speed of a moment: enough to even out single ones, within about two seconds


class MachineSpeed:
    """A StepTimeModel of one engine, and the observer of its simulation: so it knows the time.

    Steps that only decode and steps with prompt tokens have a speed each: the former mostly read, the latter multiply,
    and those parts of a machine do not slow down together. timed: as of StepsBetween; without any, as profiled.
    """

    def __init__(self, table: ProfileTable, timed: Sequence[StepBetween]) -> None:
        self._model = ProfileModel(table)
        self._now_s = 0.0
        kinds = [bool(point.work.prefill_pairs) for point in table.points]
        usual_s = [point.seconds for point in table.points]
        self._speeds = [
            _SpeedOverTime(
                [(step.at_s, step.seconds, usual_s[step.place]) for step in timed if kinds[step.place] is kind]
            )
            for kind in (False, True)
        ]

    @property
    def means(self) -> tuple[float, float]:
        """Of steps that only decode and of others: how long they took, as multiples of the profile."""
        decode, prefill = self._speeds
        return decode.mean, prefill.mean

    def note_turn(self, replica_id: int, plan: StepPlan | None, batch: EventBatch) -> None:
        self._now_s = batch.time_s

    def predict_s(self, work: StepWork) -> float:
        return self._model.predict_s(work) * self._speeds[bool(work.prefill_pairs)].at(self._now_s)

    def margin_s(self, work: StepWork) -> float:
        return self._model.margin_s(work)


class _SpeedOverTime:
    """Around each moment the nearest of `steps`: when they were timed, what they took, what they take as a rule."""

    def __init__(self, steps: Sequence[tuple[float, float, float]]) -> None:
        self.mean = _ratio(steps)
        size = min(NEIGHBOURS, len(steps))
        windows = [steps[start : start + size] for start in range(len(steps) - size + 1)] if steps else []
        self._levels = [_ratio(window) for window in windows]
        # One window gives way to the next half way between the step that leaves and the one that comes.
        self._ends_s = [(steps[i][0] + steps[i + size][0]) / 2 for i in range(len(windows) - 1)]

    def at(self, time_s: float) -> float:
        return self._levels[bisect_left(self._ends_s, time_s)] if self._levels else 1.0


def _ratio(steps: Sequence[tuple[float, float, float]]) -> float:
    """What steps took over what they take as a rule; one that was held up, unlike those around it, counts little."""
    if not steps:
        return 1.0
    longest = LONGEST_SHARE * statistics.median(taken_s / usual_s for _, taken_s, usual_s in steps)
    taken_in_all_s = sum(min(taken_s, longest * usual_s) for _, taken_s, usual_s in steps)
    return taken_in_all_s / sum(usual_s for _, _, usual_s in steps)
