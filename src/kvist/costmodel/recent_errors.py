"""The error bar of predictions, from how wrong the latest ones were. Knows nothing of what is predicted."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

QUANTILE = 0.95
MEMORY = 100  # predictions; a step that was held up is forgotten after so many
SOFT_START = 0.5  # relative error allowed for before anything is known
SOFT_START_STEPS = 8.0  # after so many predictions it is half of that, after three times as many a quarter
LEAST = 0.01


class RecentErrors:
    """Of relative errors, (actual - predicted) / predicted, the bound that nineteen in twenty keep."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._rising: list[float] = []
        self._num_noted = 0

    def note(self, relative_error: float) -> None:
        """Take a prediction's error in. Costs a place in a sorted list."""
        if len(self._latest) == MEMORY:
            del self._rising[bisect_left(self._rising, self._latest.popleft())]
        self._latest.append(relative_error)
        insort(self._rising, relative_error)
        self._num_noted += 1

    @property
    def bound(self) -> float:
        """What an error seldom exceeds, if the next ones are like the latest.

        Of n errors the one of rank QUANTILE (n + 1), rounded up, as in conformal prediction; of few the largest, and no
        less than a soft start that fades with their number: the first steps of an engine are unlike those to come.
        """
        count = len(self._rising)
        soft = SOFT_START / (1.0 + self._num_noted / SOFT_START_STEPS)
        if not count:
            return soft
        rank = min(math.ceil(QUANTILE * (count + 1)), count)
        return max(self._rising[rank - 1], soft, LEAST)
