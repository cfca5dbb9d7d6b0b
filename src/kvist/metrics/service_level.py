"""Targets for goodput: stated in milliseconds, or as multiples of the unloaded latency of a request of that length."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from kvist.core.errors import ConfigError
from kvist.metrics.served_request import ServedRequest, Targets

TargetMetric = Literal["ttft", "tpot", "e2el"]
METRICS: Sequence[TargetMetric] = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Target:
    """value: milliseconds or, if is_multiple, times the unloaded latency."""

    value: float
    is_multiple: bool

    @property
    def text(self) -> str:
        return f"{self.value:g}{'x' if self.is_multiple else 'ms'}"


ServiceLevels = Mapping[TargetMetric, Target]


@dataclass(frozen=True, slots=True)
class UnloadedPoint:
    """Latencies of a request that had the server to itself and found nothing of its prompt cached."""

    num_prompt_tokens: int
    ttft_s: float
    tpot_s: float


class UnloadedLatency:
    """Latencies by prompt length, in a straight line between the measured lengths and constant beyond them."""

    def __init__(self, points: Sequence[UnloadedPoint]) -> None:
        """Raises ValueError without any point."""
        if not points:
            raise ValueError("no unloaded latency was measured")
        by_length: dict[int, list[UnloadedPoint]] = {}
        for point in points:
            by_length.setdefault(point.num_prompt_tokens, []).append(point)
        # Of repeats the shortest: what disturbs a measurement only makes it longer.
        self.points = [
            UnloadedPoint(length, min(p.ttft_s for p in same), min(p.tpot_s for p in same))
            for length, same in sorted(by_length.items())
        ]

    def at(self, num_prompt_tokens: int) -> UnloadedPoint:
        lengths = [point.num_prompt_tokens for point in self.points]
        place = bisect_left(lengths, num_prompt_tokens)
        if place == len(lengths):
            return self.points[-1]
        if place == 0 or lengths[place] == num_prompt_tokens:
            return self.points[place]
        low, high = self.points[place - 1], self.points[place]
        share = (num_prompt_tokens - low.num_prompt_tokens) / (high.num_prompt_tokens - low.num_prompt_tokens)
        return UnloadedPoint(
            num_prompt_tokens,
            low.ttft_s + share * (high.ttft_s - low.ttft_s),
            low.tpot_s + share * (high.tpot_s - low.tpot_s),
        )


def unloaded_points(requests: Sequence[ServedRequest]) -> list[UnloadedPoint]:
    """Of requests that were served one at a time; those that failed or had a single token are left out."""
    points = []
    for request in requests:
        tpots = request.tpots_s()
        if request.is_completed and request.ttft_s is not None and tpots:
            points.append(UnloadedPoint(request.num_prompt_tokens, request.ttft_s, median(tpots)))
    return points


def parse_levels(words: Sequence[str]) -> dict[TargetMetric, Target]:
    """From words such as `ttft:500` (ms) or `tpot:3x` (times the unloaded). Raises ConfigError."""
    levels: dict[TargetMetric, Target] = {}
    for word in words:
        name, _, value = word.partition(":")
        metric = next((metric for metric in METRICS if metric == name), None)
        is_multiple = value.endswith("x")
        try:
            number = float(value.removesuffix("x"))
        except ValueError:
            number = 0.0
        if metric is None or not 0 < number < float("inf") or (is_multiple and metric == "e2el"):
            raise ConfigError(
                f"--goodput {word!r}: give ttft:MS, tpot:MS, e2el:MS, or multiples of the unloaded latency: ttft:5x"
            )
        levels[metric] = Target(number, is_multiple)
    return levels


def targets_for(levels: ServiceLevels, unloaded: UnloadedLatency | None, num_prompt_tokens: int) -> Targets:
    """What a request of that prompt length must keep. unloaded: needed where a level is a multiple."""

    def seconds(metric: TargetMetric, unloaded_s: float | None) -> float | None:
        level = levels.get(metric)
        if level is None:
            return None
        if not level.is_multiple:
            return level.value / 1e3
        assert unloaded_s is not None
        return level.value * unloaded_s

    point = unloaded.at(num_prompt_tokens) if unloaded is not None else None
    return Targets(
        ttft_s=seconds("ttft", None if point is None else point.ttft_s),
        tpot_s=seconds("tpot", None if point is None else point.tpot_s),
        e2el_s=seconds("e2el", None),
    )
