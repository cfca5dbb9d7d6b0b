"""Histograms with fixed buckets: O(1) memory, mergeable, with estimated percentiles."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LATENCY_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
STEP_TOKEN_BUCKETS = (0, *TOKEN_BUCKETS)  # a step may have none of a kind
COUNT_BUCKETS = (0, 1, 2, 3, 5, 10, 20, 50)


class Histogram:
    """Counts of values per bucket. A bucket's bound is the largest value it holds; the last bucket has none."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times. A negative value counts as 0: the sum of a histogram never falls."""
        value = max(value, 0.0)
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def num_values(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Prometheus buckets: upper bound as text, count of values up to it."""
        names = [*(f"{bound:g}" if bound < 1e6 else str(bound) for bound in self.bounds), "+Inf"]
        running, buckets = 0, []
        for name, count in zip(names, self.counts, strict=True):
            running += count
            buckets.append((name, running))
        return buckets

    def since(self, earlier: Histogram) -> Histogram:
        """What came after `earlier`, a copy of this histogram."""
        later = Histogram(self.bounds)
        later.counts = [now - before for now, before in zip(self.counts, earlier.counts, strict=True)]
        later.total = self.total - earlier.total
        return later

    def copy(self) -> Histogram:
        return self.since(Histogram(self.bounds))

    def percentile(self, percent: float) -> float | None:
        """Estimate by linear interpolation inside the bucket; None when empty, the last bound when beyond it."""
        rank = percent / 100.0 * self.num_values
        running, low = 0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and running + count >= rank:
                return low + (bound - low) * max(rank - running, 0.0) / count
            running, low = running + count, bound
        return low if self.num_values else None
