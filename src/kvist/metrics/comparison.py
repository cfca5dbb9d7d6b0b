"""Puts results of benchmarks beside each other and says which differences are larger than the spread.

A side is one result or several repeats of the same. The spread of a figure is, by what is known:
- of repeats, in several files or within one (`rows` with `values`): from the smallest to the largest;
- of a mean of latencies, where standard deviation and count are known: mean +- 2 standard errors. Requests of one run
  are not independent, so this is the least that the spread can be;
- of a share of requests: its 95% interval (Wilson).
Two figures differ where their spreads do not overlap. Where a side has no spread, nobody can tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from kvist.metrics.rate_search import wilson_interval

Result = Mapping[str, Any]  # Any: what JSON holds
LARGEST = 1e300  # more is no measurement, and would overflow


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    WITHIN_SPREAD = "within the spread"
    UNKNOWN = "spread unknown"


@dataclass(frozen=True, slots=True)
class Figure:
    """low, high: its spread, None if unknown."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One quantity: a figure of each side, None where it has none; ratio and verdict against the first side."""

    name: str
    higher_is_better: bool
    figures: Sequence[Figure | None]
    ratios: Sequence[float | None]
    verdicts: Sequence[Verdict | None]


# Of a serve result, in the order of the table: name -> whether higher is better.
SERVE_FIGURES: Mapping[str, bool] = {
    "request_throughput": True,
    "output_throughput": True,
    "total_token_throughput": True,
    "request_goodput": True,
    "slo_attainment": True,
    "cache_hit_share": True,
    "mean_ttft_ms": False,
    "median_ttft_ms": False,
    "p99_ttft_ms": False,
    "mean_tpot_ms": False,
    "median_tpot_ms": False,
    "p99_tpot_ms": False,
    "mean_itl_ms": False,
    "median_itl_ms": False,
    "p99_itl_ms": False,
    "mean_e2el_ms": False,
    "p99_e2el_ms": False,
    "failed": False,
    "preemptions": False,
}
LOWER_IS_BETTER = ("_s", "_ms", "latency", "failed", "bytes")  # endings, for rows of other results


def compare(sides: Sequence[Sequence[Result]]) -> list[ComparedRow]:
    """Rows of what the first side and any other have."""
    figures = [_figures(side) for side in sides]
    rows = []
    for name, first in figures[0].items():
        others = [side.get(name) for side in figures[1:]]
        if all(other is None for other in others):
            continue
        higher = SERVE_FIGURES.get(name, not name.endswith(LOWER_IS_BETTER))
        rows.append(
            ComparedRow(
                name=name,
                higher_is_better=higher,
                figures=[first, *others],
                ratios=[1.0, *(_ratio(first, other) for other in others)],
                verdicts=[None, *(_verdict(first, other, higher_is_better=higher) for other in others)],
            )
        )
    return rows


def _figures(side: Sequence[Result]) -> dict[str, Figure]:
    gathered: dict[str, list[Figure]] = {}
    for result in side:
        for name, figure in figures_of(result).items():
            gathered.setdefault(name, []).append(figure)
    return {name: _over_repeats(figures) for name, figures in gathered.items()}


def figures_of(result: Result) -> dict[str, Figure]:
    """What of one result can be compared: those of SERVE_FIGURES that it has, and its named rows."""
    return dict(_of_one(result))


def _of_one(result: Result) -> Iterator[tuple[str, Figure]]:
    for name in SERVE_FIGURES:
        value = _number(result.get(name))
        if value is not None:
            yield name, Figure(value, *_own_spread(result, name, value))
    rows = result.get("rows")
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, Mapping) or "name" not in row:
            continue
        measured = _number(row.get("measured"))
        if measured is not None:
            values = _numbers(row.get("values"))
            spread = (min(values), max(values)) if len(values) > 1 else (None, None)
            yield str(row["name"]), Figure(measured, *spread)


def _number(value: Any) -> float | None:
    """A finite number; None for anything else that JSON holds. Other programs write other things into these fields."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return float(value)


def _numbers(values: Any) -> list[float]:
    """The numbers of a list of numbers; nothing if it is none."""
    numbers = [_number(value) for value in values] if isinstance(values, list) else []
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else []


def _count(value: Any) -> int:
    number = _number(value)
    return 0 if number is None or number < 0 else int(number)


def _own_spread(result: Result, name: str, value: float) -> tuple[float | None, float | None]:
    if name == "slo_attainment":
        total = sum(_count(result.get(key)) for key in ("completed", "failed", "unfinished"))
        return wilson_interval(round(value * total), total) if 0 <= value <= 1 else (None, None)
    metric = name.removeprefix("mean_").removesuffix("_ms")
    deviation, count = _number(result.get(f"std_{metric}_ms")), _count(result.get("completed"))
    if not name.startswith("mean_") or deviation is None or count < 2:
        return None, None
    half = 2.0 * deviation / math.sqrt(count)
    return value - half, value + half


def _over_repeats(figures: Sequence[Figure]) -> Figure:
    if len(figures) == 1:
        return figures[0]
    values = [figure.value for figure in figures]
    return Figure(median(values), min(values), max(values))


def _ratio(first: Figure, other: Figure | None) -> float | None:
    return None if other is None or first.value == 0 else other.value / first.value


def _verdict(first: Figure, other: Figure | None, *, higher_is_better: bool) -> Verdict | None:
    if other is None:
        return None
    if first.low is None or first.high is None or other.low is None or other.high is None:
        return Verdict.UNKNOWN
    if other.low > first.high:
        return Verdict.BETTER if higher_is_better else Verdict.WORSE
    if other.high < first.low:
        return Verdict.WORSE if higher_is_better else Verdict.BETTER
    return Verdict.WITHIN_SPREAD
