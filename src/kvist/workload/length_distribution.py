"""Lengths in tokens: how a load states them, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvist.core.errors import ConfigError
from kvist.workload.random_stream import RandomStream

MAX_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any whole number of low..high; a fixed length has low == high."""

    low: int
    high: int

    def draw(self, stream: RandomStream) -> int:
        return stream.integer(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal with this mean and median before it is clipped to min..max: sigma^2 = 2 ln(mean / median)."""

    mean: float
    median: float
    min: int
    max: int

    def draw(self, stream: RandomStream) -> int:
        sigma = math.sqrt(2.0 * math.log(self.mean / self.median))
        length = round(self.median * math.exp(sigma * stream.normal()))
        return min(max(length, self.min), self.max)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these lengths, as likely as it is often listed."""

    lengths: tuple[int, ...]

    def draw(self, stream: RandomStream) -> int:
        return self.lengths[stream.integer(0, len(self.lengths) - 1)]


LengthDistribution = Uniform | LogNormal | Choice


def parse_length(value: Mapping[str, Any], where: str) -> LengthDistribution:
    """From `{fixed = n}`, `{uniform = [low, high]}`, `{choice = [...]}` or `{lognormal = {mean, median, min, max}}`.

    Raises ConfigError, naming `where`. Any: a table as TOML gives it.
    """
    try:
        [(kind, stated)] = value.items()
        distribution = _parse(kind, stated)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: {value!r} is no length. Give one of {{fixed = n}}, {{uniform = [low, high]}}, "
            "{choice = [...]}, {lognormal = {mean, median, min, max}}, in tokens."
        ) from error
    return distribution


def _parse(kind: str, stated: Any) -> LengthDistribution:
    if kind == "fixed":
        return Uniform(_count(stated), _count(stated))
    if kind == "uniform" and stated[0] <= stated[1]:
        low, high = map(_count, stated)
        return Uniform(low, high)
    if kind == "choice" and stated:
        return Choice(tuple(map(_count, stated)))
    if kind == "lognormal" and set(stated) == {"mean", "median", "min", "max"}:
        mean, median = float(stated["mean"]), float(stated["median"])
        if MAX_TOKENS >= mean >= median >= 1 and stated["min"] <= stated["max"]:
            return LogNormal(mean, median, _count(stated["min"]), _count(stated["max"]))
    raise ValueError(kind)


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise ValueError(value)
    return value
