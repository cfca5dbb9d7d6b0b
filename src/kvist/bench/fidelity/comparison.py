"""Puts predictions beside what was measured, with the spread of the repeats and the errors that were asked for."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]  # Any: what JSON holds


@dataclass(frozen=True, slots=True)
class Metric:
    """field: of a benchmark's result. is_share: errors are differences of the value itself, not relative to it."""

    field: str
    label: str
    form: str
    is_share: bool = False


METRICS = (
    Metric("median_ttft_ms", "TTFT P50, ms", "{:.0f}"),
    Metric("p90_ttft_ms", "TTFT P90, ms", "{:.0f}"),
    Metric("p99_ttft_ms", "TTFT P99, ms", "{:.0f}"),
    Metric("median_tpot_ms", "TPOT P50, ms", "{:.1f}"),
    Metric("mean_tpot_ms", "TPOT mean, ms", "{:.1f}"),
    Metric("output_throughput", "output tokens/s", "{:.1f}"),
    Metric("cache_hit_share", "prompt tokens from the cache", "{:.1%}", is_share=True),
    Metric("preemptions", "preemptions", "{:.0f}", is_share=True),
)
SATURATED = 1.0  # a load factor from which on a queue only grows


def compared_row(metric: Metric, runs: Sequence[Document], predicted: Sequence[Document]) -> Document | None:
    """Median, spread and prediction of one metric over repeats; None if a side has no value.

    runs: results of repeats, predicted: of each. error: the median of the repeats' own, so that one that went wrong in
    itself counts once. spread: (largest - smallest) / median, or their difference for a share.
    """
    values = [run[metric.field] for run in runs]
    expected = [one[metric.field] for one in predicted]
    if None in expected or None in values or not (metric.is_share or all(values)):
        return None
    scales = [1.0 if metric.is_share else value for value in values]
    errors = [(b - a) / scale for a, b, scale in zip(values, expected, scales, strict=True)]
    middle = statistics.median(values)
    return {
        "metric": metric.field,
        "measured": middle,
        "values": values,
        "spread": (max(values) - min(values)) / (1.0 if metric.is_share else middle) if len(values) > 1 else None,
        "predicted": statistics.median(expected),
        "errors": errors,
        "error": statistics.median(errors),
    }


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on errors: on their median if is_median, else on each. or_spread: or so many times the spread."""

    label: str
    metrics: Sequence[str]
    bound: float
    lowest: float = 0.0
    highest: float = float("inf")
    is_median: bool = False
    or_spread: float = 0.0


GOALS = (
    Goal("TPOT, median error", ("median_tpot_ms",), 0.05, is_median=True),
    Goal("throughput, median error", ("output_throughput",), 0.05, is_median=True),
    Goal("TTFT P50 at load factors <= 0.7", ("median_ttft_ms",), 0.10, highest=0.7),
    Goal("TTFT P50 at 0.9", ("median_ttft_ms",), 0.25, lowest=0.9, highest=0.9, or_spread=2.0),
    Goal("TTFT P99 at load factors <= 0.7", ("p99_ttft_ms",), 0.20, highest=0.7),
    Goal("hit share, points", ("cache_hit_share",), 0.01),
    Goal("throughput past saturation", ("output_throughput",), 0.05, lowest=SATURATED),
)


def judge(goal: Goal, cells: Sequence[Mapping[str, Any]]) -> Document | None:
    """How the cells keep to a goal; None if none of them is about it. Any: what JSON holds."""
    rows = [
        row
        for cell in cells
        if cell["load_factor"] is not None and goal.lowest <= cell["load_factor"] <= goal.highest
        for row in cell["rows"]
        if row["metric"] in goal.metrics
    ]
    if not rows:
        return None
    errors = [abs(row["error"]) for row in rows]
    bounds = [max(goal.bound, goal.or_spread * (row["spread"] or 0.0)) for row in rows]
    spreads = [row["spread"] for row in rows if row["spread"] is not None]
    met = sum(error <= bound for error, bound in zip(errors, bounds, strict=True))
    return {
        "goal": goal.label,
        "bound": goal.bound,
        "or_spread": goal.or_spread,
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "median_spread": statistics.median(spreads) if spreads else None,
        "cells": len(rows),
        "cells_within": met,
        "is_met": statistics.median(errors) <= goal.bound if goal.is_median else met == len(rows),
    }
