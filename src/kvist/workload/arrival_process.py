"""When requests come: seconds after the start of the load, rising.

Rates are in requests per second; a load's fractions of capacity are multiplied out before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from kvist.workload.random_stream import RandomStream


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    def times(self, stream: RandomStream, num_requests: int, capacity_per_s: float) -> list[float]:
        return [0.0] * num_requests


@dataclass(frozen=True, slots=True)
class Gamma:
    """Independent gamma-distributed gaps with coefficient of variation `cv`; 1.0 is a Poisson process."""

    rate_fraction: float
    cv: float = 1.0

    def times(self, stream: RandomStream, num_requests: int, capacity_per_s: float) -> list[float]:
        mean = 1.0 / (self.rate_fraction * capacity_per_s)
        if self.cv == 1.0:
            return list(accumulate([stream.exponential(mean) for _ in range(num_requests)]))
        return list(accumulate([stream.gamma(1.0 / self.cv**2, mean) for _ in range(num_requests)]))


@dataclass(frozen=True, slots=True)
class OnOff:
    """Poisson at the rate for `on_s`, nothing for `off_s`, again and again."""

    rate_fraction: float
    on_s: float
    off_s: float

    def times(self, stream: RandomStream, num_requests: int, capacity_per_s: float) -> list[float]:
        busy = Gamma(self.rate_fraction).times(stream, num_requests, capacity_per_s)
        return [time_s + math.floor(time_s / self.on_s) * self.off_s for time_s in busy]


@dataclass(frozen=True, slots=True)
class Drift:
    """A Poisson process whose rate goes in a straight line from `first_fraction` to `last_fraction`."""

    first_fraction: float
    last_fraction: float

    def times(self, stream: RandomStream, num_requests: int, capacity_per_s: float) -> list[float]:
        first, last = self.first_fraction * capacity_per_s, self.last_fraction * capacity_per_s
        duration_s = 2.0 * num_requests / (first + last)  # in which num_requests are expected
        slope = (last - first) / duration_s
        unit = list(accumulate([stream.exponential(1.0) for _ in range(num_requests)]))
        return [_time_of(count, first, slope, duration_s, num_requests, last) for count in unit]


@dataclass(frozen=True, slots=True)
class RampUp:
    """Gamma-distributed gaps at a rate that goes from `first_per_s` to `last_per_s`, request by request.

    By a constant difference or, if `exponential`, by a constant factor. Rates are in requests per second.
    """

    first_per_s: float
    last_per_s: float
    exponential: bool = False
    cv: float = 1.0

    def times(self, stream: RandomStream, num_requests: int, capacity_per_s: float = 1.0) -> list[float]:
        gaps = Gamma(1.0, self.cv).times(stream, num_requests, 1.0)
        unit_gaps = [later - earlier for earlier, later in pairwise([0.0, *gaps])]
        rates = [self._rate(index / max(num_requests - 1, 1)) for index in range(num_requests)]
        return list(accumulate(gap / rate for gap, rate in zip(unit_gaps, rates, strict=True)))

    def _rate(self, progress: float) -> float:
        if self.exponential:
            return self.first_per_s * math.pow(self.last_per_s / self.first_per_s, progress)
        return self.first_per_s + (self.last_per_s - self.first_per_s) * progress


ArrivalProcess = AllAtOnce | Gamma | OnOff | Drift


def _time_of(count: float, first: float, slope: float, duration_s: float, expected: float, last: float) -> float:
    """The t at which `count` requests are expected: count = first t + slope t^2 / 2, at the last rate after the end."""
    if count >= expected:
        return duration_s + (count - expected) / last
    return 2.0 * count / (first + math.sqrt(max(0.0, first * first + 2.0 * slope * count)))


def poisson_within(stream: RandomStream, rate_per_s: float, duration_s: float) -> list[float]:
    """Times in [0, duration_s) of a Poisson process."""
    times: list[float] = []
    time_s = stream.exponential(1.0 / rate_per_s)
    while time_s < duration_s:
        times.append(time_s)
        time_s += stream.exponential(1.0 / rate_per_s)
    return times


def spread_grid(times: Sequence[float]) -> list[float]:
    """Spread requests that share a timestamp evenly up to the next one: some traces are stamped on a coarse grid.

    `times` rise. The last group gets as much time as the one before it.
    """
    distinct = sorted(set(times))
    gaps = [later - earlier for earlier, later in pairwise(distinct)]
    gap_after = dict(zip(distinct, [*gaps, gaps[-1] if gaps else 0.0], strict=False))
    counts: dict[float, int] = {}
    for time_s in times:
        counts[time_s] = counts.get(time_s, 0) + 1
    seen: dict[float, int] = {}
    spread = []
    for time_s in times:
        rank = seen.get(time_s, 0)
        seen[time_s] = rank + 1
        spread.append(time_s + gap_after[time_s] * rank / counts[time_s])
    return spread
