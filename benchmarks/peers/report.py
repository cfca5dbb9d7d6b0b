"""Rows of the result: each engine's figures with their spread, and how many times better kvist is."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.result_file import spread

# Median, min and max of these are taken over repeats. Unit, and whether more is better.
MEASURES: Mapping[str, tuple[str, bool]] = {
    "decode_128": ("tokens/s", True),
    "prefill_512": ("tokens/s", True),
    "prefill_2048": ("tokens/s", True),
    "fixed_16": ("tokens/s", True),
    "fixed_32": ("tokens/s", True),
    "shared_system_32": ("s", False),
    "peak_mib": ("MiB", False),
    "start_s": ("s", False),
    "online_ttft_p99_s": ("s", False),
    "online_ttft_mean_s": ("s", False),
    "online_tpot_mean_ms": ("ms", False),
    "online_makespan_s": ("s", False),
}

Figures = dict[tuple[str, str], list[float]]  # engine's name and measure -> a figure a repeat


def result_row(name: str, figures: Figures, kvist: str) -> dict[str, Any]:
    """An engine's measures: spread, and `kvist_times_better` of the medians."""
    row: dict[str, Any] = {}
    for measure, (unit, more_is_better) in MEASURES.items():
        values = figures.get((name, measure))
        if not values:
            continue
        row[measure] = spread(values, unit)
        ours = figures.get((kvist, measure))
        if ours and name != kvist:
            row[measure]["kvist_times_better"] = times_better(ours, values, more_is_better=more_is_better)
    return row


def times_better(ours: Sequence[float], theirs: Sequence[float], *, more_is_better: bool) -> float:
    our_median, their_median = statistics.median(ours), statistics.median(theirs)
    return our_median / their_median if more_is_better else their_median / our_median


def fastest_peers(rows: Mapping[str, Mapping[str, Any]], kvist: str) -> dict[str, dict[str, Any]]:
    """For each measure the peer that comes nearest to kvist, or is the furthest ahead of it."""
    best: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        for measure, value in row.items():
            if name == kvist or "kvist_times_better" not in value:
                continue
            ratio = value["kvist_times_better"]
            if measure not in best or ratio < best[measure]["kvist_times_better"]:
                best[measure] = {"peer": name, "kvist_times_better": ratio}
    return best
