"""Finds the largest rate at which an objective holds: brackets it, then bisects. Asks for judgements only.

The rates that are judged differ by factors, so the bracket is a ratio and its middle a geometric mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.metrics.percentiles import mean
from kvist.metrics.rate_search import wilson_interval
from kvist.planner.trial import Judged

MAX_HALVINGS = 12  # from the first rate down to 1/4096 of it; what cannot keep that keeps nothing
GROWTH = 2.0
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}  # Student's, two-sided


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """rate_per_s: the largest rate judged at which the objective held, 0 if none; next_rate_per_s: the smallest at
    which it did not, None if none: the limit of this sample of requests lies between. judgements: by rising rate.
    """

    rate_per_s: float
    next_rate_per_s: float | None
    judgements: tuple[Judged, ...]

    @property
    def sure_range(self) -> tuple[float, float | None]:
        """The same for the load that the sample is of: rates whose attainment is within the sample's noise left out.

        Judgements that ended early count with what was sure of them. Wilson's interval, 95%.
        """
        low: float = 0.0
        high: float | None = None
        for judged in self.judgements:
            worst, best = _attainment_interval(judged)
            if worst >= judged.goal:
                low = max(low, judged.rate_per_s)
            if best < judged.goal and high is None:
                high = judged.rate_per_s
        return low, high


def search_goodput(
    judge_at: Callable[[float], Judged],
    *,
    first_rate_per_s: float,
    tolerance: float,
    max_rate_per_s: float = math.inf,
    min_rate_per_s: float = 0.0,
) -> Goodput:
    """Judge rates until the bracket's ends are at most a factor of 1 + `tolerance` apart.

    max_rate_per_s: a bound from elsewhere, above which no rate can hold; none is judged there.
    min_rate_per_s: stop as soon as the goodput is known to be less: whoever asks has something better.
    """
    judged: dict[float, Judged] = {}
    rate = min(first_rate_per_s, max_rate_per_s)
    low, high = 0.0, None if math.isinf(max_rate_per_s) else max_rate_per_s
    num_halvings = 0
    while True:
        found = judged[rate] = judge_at(rate)
        if found.holds:
            low = max(low, rate)
        else:
            high = rate if high is None else min(high, rate)
        if high is not None and high < min_rate_per_s:
            break
        if low == 0.0:
            num_halvings += 1
            if num_halvings > MAX_HALVINGS:
                break
            rate /= GROWTH
        elif high is None:
            rate *= GROWTH
        elif high <= low * (1.0 + tolerance):
            break
        else:
            rate = min(math.sqrt(low * high), low * GROWTH)
    return Goodput(
        rate_per_s=low,
        next_rate_per_s=min((each for each, found in judged.items() if not found.holds), default=None),
        judgements=tuple(judged[each] for each in sorted(judged)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Goodput over draws of the load. half_width: of the 95% interval of the mean (Student's t); None of one draw."""

    mean: float
    half_width: float | None
    values: tuple[float, ...]


def spread_over_draws(values: Sequence[float]) -> Spread:
    """values: not empty."""
    middle = mean(values)
    if len(values) < 2:
        return Spread(mean=middle, half_width=None, values=tuple(values))
    variance = math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)
    factor = T_95.get(len(values) - 1, 2.0)
    return Spread(mean=middle, half_width=factor * math.sqrt(variance / len(values)), values=tuple(values))


def _attainment_interval(judged: Judged) -> tuple[float, float]:
    """95% interval of the attainment: of a run that ended early with good ones, what is missing counts as bad."""
    good = judged.num_good if judged.holds else judged.total - judged.num_bad
    return wilson_interval(good, judged.total)
