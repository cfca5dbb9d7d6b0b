"""Finds the largest rate that keeps an attainment: brackets it, then halves the bracket. Asks for measurements only.

Each step's attainment is a share of finitely many requests, so it has a confidence interval (Wilson's, 95%). Where that
holds the goal, the step could have gone either way: it is measured once more and the two are pooled.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

Z_95 = 1.959964
MAX_STEPS = 24


@dataclass(frozen=True, slots=True)
class Attained:
    """One measurement: `good` of `total` requests met their targets at `rate_per_s` requests per second offered.

    were_alone: no two of them were open at once, so that a lower rate would change nothing.
    """

    rate_per_s: float
    good: int
    total: int
    were_alone: bool = False

    @property
    def share(self) -> float:
        return self.good / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """All measurements at one factor, pooled. low, high: 95% interval of the attainment."""

    factor: float
    rate_per_s: float
    good: int
    total: int
    low: float
    high: float

    @property
    def attainment(self) -> float:
        return self.good / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class RateFound:
    """max_rate_per_s: largest measured rate that kept the goal; next_rate_per_s: smallest that did not; None if none.

    The true limit lies between the two, as far as the steps at both ends are decided. low_rate_per_s, high_rate_per_s:
    the same with steps left out whose interval holds the goal.
    """

    max_rate_per_s: float | None
    next_rate_per_s: float | None
    low_rate_per_s: float | None
    high_rate_per_s: float | None
    steps: tuple[Step, ...]


def wilson_interval(good: int, total: int, z: float = Z_95) -> tuple[float, float]:
    """Confidence interval of a share (Wilson, "Probable inference, the law of succession", 1927)."""
    if total == 0:
        return 0.0, 1.0
    share, z2 = good / total, z * z
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = z * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if good == 0 else low), (1.0 if good == total else high)  # exact, whatever the rounding


def search_rate(*, goal: float, tolerance: float, first_factor: float = 1.0) -> Generator[float, Attained, RateFound]:
    """Yield factors of the load's own rate to measure at; send each one's Attained; returns what was found.

    tolerance: stop when the bracket's upper end is at most (1 + tolerance) times its lower one. It stops too where
    requests that had the server to themselves missed the goal.
    """
    steps: dict[float, Step] = {}
    factor = first_factor
    low: float | None = None  # largest factor that kept the goal
    high: float | None = None  # smallest that did not
    for _ in range(MAX_STEPS):
        attained = yield factor
        step = _pooled(None, factor, attained)
        if step.low < goal < step.high:
            step = _pooled(step, factor, (yield factor))
        steps[factor] = step
        if step.attainment >= goal:
            low = factor
        else:
            high = factor
        if low is None and attained.were_alone:
            break
        if low is None:
            factor = factor / 2
        elif high is None:
            factor = factor * 2
        elif high <= low * (1 + tolerance):
            break
        else:
            factor = math.sqrt(low * high)
    return _found(steps, goal)


def _pooled(earlier: Step | None, factor: float, attained: Attained) -> Step:
    good = attained.good + (earlier.good if earlier else 0)
    total = attained.total + (earlier.total if earlier else 0)
    rate = attained.rate_per_s if earlier is None else (attained.rate_per_s + earlier.rate_per_s) / 2
    return Step(factor, rate, good, total, *wilson_interval(good, total))


def _found(steps: dict[float, Step], goal: float) -> RateFound:
    ordered = sorted(steps.values(), key=lambda step: step.factor)
    kept = [step.rate_per_s for step in ordered if step.attainment >= goal]
    missed = [step.rate_per_s for step in ordered if step.attainment < goal]
    surely_kept = [step.rate_per_s for step in ordered if step.low >= goal]
    surely_missed = [step.rate_per_s for step in ordered if step.high < goal]
    return RateFound(
        max_rate_per_s=max(kept, default=None),
        next_rate_per_s=min(missed, default=None),
        low_rate_per_s=max(surely_kept, default=None),
        high_rate_per_s=min(surely_missed, default=None),
        steps=tuple(ordered),
    )
