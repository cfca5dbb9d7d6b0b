"""Targets for goodput: stated in milliseconds, or as multiples of the unloaded latency of a request of that length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvist.core.errors import ConfigError
from kvist.metrics.served_request import Targets
from kvist.metrics.unloaded_latency import UnloadedLatency

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


def targets_for(
    levels: ServiceLevels, unloaded: UnloadedLatency | None, *, num_prompt_tokens: int, num_output_tokens: int
) -> Targets:
    """What a request of these lengths must keep. unloaded: needed where a level is a multiple."""

    def seconds(metric: TargetMetric) -> float | None:
        level = levels.get(metric)
        if level is None:
            return None
        if not level.is_multiple:
            return level.value / 1e3
        assert unloaded is not None
        if metric == "ttft":
            return level.value * unloaded.ttft_s(num_prompt_tokens)
        return level.value * unloaded.tpot_s(num_prompt_tokens, num_output_tokens)

    return Targets(ttft_s=seconds("ttft"), tpot_s=seconds("tpot"), e2el_s=seconds("e2el"))
