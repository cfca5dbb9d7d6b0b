"""What a plan must keep: a time to first token, a time per output token, and for which share of the requests."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.metrics.served_request import Targets
from kvist.simulator.links import NS_PER_S
from kvist.simulator.simulation_result import SimulatedRequest

KEYS = ("ttft", "tpot", "attainment")
DEFAULT_ATTAINMENT = 0.9
MIN_TARGET_MS = 1.0  # less is a number meant in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevelObjective:
    """A request is good if it meets every target; the objective holds while `attainment` of all requests are good."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    attainment: float = DEFAULT_ATTAINMENT

    def __post_init__(self) -> None:
        if self.ttft_s is None and self.tpot_s is None:
            raise ConfigError("a service level objective needs a target: ttft=200ms, tpot=50ms, or both")
        if not 0.0 < self.attainment <= 1.0:
            raise ConfigError(f"attainment is a share above 0 and up to 1, not {self.attainment:g}")

    @property
    def targets(self) -> Targets:
        return Targets(ttft_s=self.ttft_s, tpot_s=self.tpot_s)

    @property
    def text(self) -> str:
        """As `parse_objective` reads it."""
        parts = [
            f"{name}={value * 1e3:g}ms"
            for name, value in (("ttft", self.ttft_s), ("tpot", self.tpot_s))
            if value is not None
        ]
        return ",".join([*parts, f"attainment={self.attainment:g}"])

    def num_needed(self, num_requests: int) -> int:
        """Good requests that the objective asks of `num_requests`."""
        return math.ceil(self.attainment * num_requests - 1e-9)

    def is_good(self, request: SimulatedRequest) -> bool:
        """Whether a request that has ended met every target. One that was refused or failed met none."""
        if request.outcome != "finished" or not request.token_times_ns:
            return False
        times = request.token_times_ns
        if self.ttft_s is not None and times[0] - request.arrival_ns > self.ttft_s * NS_PER_S:
            return False
        num_gaps = len(times) - 1
        return self.tpot_s is None or num_gaps == 0 or times[-1] - times[0] <= self.tpot_s * NS_PER_S * num_gaps


def parse_objective(text: str) -> ServiceLevelObjective:
    """From `ttft=200ms,tpot=0.05s,attainment=0.9`. A time without a unit is in milliseconds. Raises ConfigError."""
    values: dict[str, float] = {}
    for word in text.replace(" ", "").split(","):
        key, _, stated = word.partition("=")
        if key not in KEYS:
            raise ConfigError(f"--slo {word!r}: there is {', '.join(KEYS)}.{did_you_mean(key, KEYS)}")
        if key in values:
            raise ConfigError(f"--slo names {key} twice")
        values[key] = _attainment(stated) if key == "attainment" else _target_s(key, stated)
    return ServiceLevelObjective(
        ttft_s=values.get("ttft"),
        tpot_s=values.get("tpot"),
        attainment=values.get("attainment", DEFAULT_ATTAINMENT),
    )


def _target_s(key: str, stated: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(ms|s)?", stated)
    if match is None:
        raise ConfigError(f"--slo {key}={stated}: write a time, such as {key}=200ms or {key}=0.2s")
    milliseconds = float(match[1]) * (1e3 if match[2] == "s" else 1.0)
    if milliseconds < MIN_TARGET_MS:
        raise ConfigError(f"--slo {key}={stated} is {milliseconds:g} ms; for seconds write {key}={match[1]}s")
    return milliseconds / 1e3


def _attainment(stated: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(%)?", stated)
    if match is None:
        raise ConfigError(f"--slo attainment={stated}: write a share, such as 0.9 or 90%")
    return float(match[1]) / (100.0 if match[2] else 1.0)
