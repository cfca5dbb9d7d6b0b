"""Exact statistics over all values of a run. (Histogram estimates; this does not.)"""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(rising: Sequence[float], percent: float) -> float:
    """The value below which `percent` (0 to 100) of `rising` lie, linear between its neighbours, as NumPy's default.

    rising: sorted and not empty.
    """
    place = (len(rising) - 1) * percent / 100.0
    lower = math.floor(place)
    upper = min(lower + 1, len(rising) - 1)
    return rising[lower] + (rising[upper] - rising[lower]) * (place - lower)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float:
    """Of the population, as vLLM's `std_` fields are."""
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))
