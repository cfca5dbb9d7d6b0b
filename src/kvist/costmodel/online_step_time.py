"""Fits the time of a step to the steps that the engine itself has run, while it runs them.

Time = sum of coefficient x count over a few counts of the step, coefficients never negative: so a prediction grows with
every count. The fit is least squares on relative errors over a fading memory, solved when one is asked for: six
unknowns, a constant cost. A machine that is shared adds outliers and slow seconds: a step far off counts less (Huber's
weights), and a level beside the coefficients follows what all of the last steps had in common.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from kvist.costmodel.non_negative_least_squares import solve_non_negative
from kvist.costmodel.recent_errors import RecentErrors
from kvist.costmodel.step_work import StepWork

# Where a fit starts: a slow laptop. Too slow is the safe side, as the first steps of an engine are then short.
PRIOR_S = {"step": 0.02, "first rows": 0.002, "token": 0.001, "decode key": 4e-6, "pair": 5e-7, "prefill key": 2e-5}
FEW_ROWS = 16  # up to so many tokens a step reads its weights for each other; beyond, it mostly multiplies
PRIOR_WEIGHT = 0.1  # of the start, in steps in which a count made up all of the time
MEMORY_STEPS = 200.0
LEVEL_STEPS = 5
SOLVE_EVERY = 8
MAX_MARGIN = 2.0
OUTLIER = 0.5  # relative error from which on a step counts less


class OnlineStepTimeModel:
    """A StepTimeModel that learns. `observe` takes a constant time."""

    def __init__(self, timed_steps: Sequence[tuple[int, float]] = ()) -> None:
        """timed_steps: (tokens, seconds) of prefill steps of one new prompt that were timed before, if any."""
        prior = list(PRIOR_S.values())
        self._prior = prior
        count = len(prior)
        self._shares = [1.0] * count  # coefficients as multiples of the prior
        self._gram = [[0.0] * count for _ in range(count)]
        self._moment = [0.0] * count
        self._is_solved = True
        self._level = 1.0
        self._latest: deque[tuple[Sequence[float], float]] = deque(maxlen=LEVEL_STEPS)
        self._errors = RecentErrors()
        self.num_observed = 0
        for num_tokens, seconds in timed_steps:
            self.observe(StepWork.of([(num_tokens, 0)], num_sampled=1), seconds)

    def predict_s(self, work: StepWork) -> float:
        """Seconds that a step of this work takes at the machine's present speed."""
        if not self._is_solved:
            self._solve()
        return self._level * self._shape_s(self._parts_s(work))

    def margin_s(self, work: StepWork) -> float:
        """What nineteen steps in twenty take at most beyond the prediction."""
        return min(self._errors.bound, MAX_MARGIN) * self.predict_s(work)

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn that a step of `work` took `seconds`. No effect unless that is a positive number."""
        if not 0.0 < seconds < math.inf or work.num_tokens == 0:
            return
        parts_s = self._parts_s(work)
        self._errors.note(seconds / (self._level * self._shape_s(parts_s)) - 1.0)
        self._latest.append((parts_s, seconds))
        self._level = self._latest_level()
        self._note_shape(parts_s, seconds / self._level)
        self.num_observed += 1
        self._is_solved = False
        if self.num_observed % SOLVE_EVERY == 0:  # also where nobody asks: errors are judged by what was solved last
            self._solve()

    def _parts_s(self, work: StepWork) -> tuple[float, ...]:
        """The work's counts, in seconds of the prior."""
        step_s, row_s, token_s, decode_key_s, pair_s, prefill_key_s = self._prior
        return (
            step_s,
            row_s * min(work.num_tokens, FEW_ROWS),
            token_s * work.num_tokens,
            decode_key_s * work.decode_context_tokens,
            pair_s * work.prefill_pairs,
            prefill_key_s * work.prefill_context_tokens,
        )

    def _shape_s(self, parts_s: Sequence[float]) -> float:
        return sum(map(float.__mul__, self._shares, parts_s)) or 1e-9

    def _latest_level(self) -> float:
        """The median of the last steps: one that was held up moves nothing, several in a row are the new level."""
        ratios = sorted([seconds / self._shape_s(parts_s) for parts_s, seconds in self._latest])
        return ratios[len(ratios) // 2] if ratios else 1.0

    def _note_shape(self, parts_s: Sequence[float], seconds: float) -> None:
        row = [part / seconds for part in parts_s]
        error = abs(sum(map(float.__mul__, self._shares, row)) - 1.0)
        weight = 1.0 if error <= OUTLIER else OUTLIER / error
        fade = 1.0 - 1.0 / MEMORY_STEPS
        for index, gram in enumerate(self._gram):
            weighted = weight * row[index]
            self._gram[index] = [fade * old + weighted * value for old, value in zip(gram, row, strict=True)]
            self._moment[index] = fade * self._moment[index] + weighted

    def _solve(self) -> None:
        """Fit the shares. What was not seen yet follows the rest in proportion to the prior."""
        self._is_solved = True
        common = (PRIOR_WEIGHT + sum(self._moment)) / (PRIOR_WEIGHT + sum(map(sum, self._gram)))
        gram = [[*row[:i], row[i] + PRIOR_WEIGHT, *row[i + 1 :]] for i, row in enumerate(self._gram)]
        self._shares = solve_non_negative(gram, [moment + PRIOR_WEIGHT * common for moment in self._moment])
        self._level = self._latest_level()
