"""Rows of the result: each engine's figures with their spread, and how many times better kvist is."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from typing import Any

from benchmarks.result_file import spread

# Median, min and max of these are taken over repeats. Unit, and whether more is better.
MEASURES: Mapping[str, tuple[str, bool]] = {
    "decode_128": ("tokens/s", True),
    "prefill_256": ("tokens/s", True),
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


def result_row(name: str, figures: Figures, ours: Collection[str]) -> dict[str, Any]:
    """An engine's measures: spread, and `kvist_times_better` of the medians where the engine is not one of `ours`."""
    row: dict[str, Any] = {}
    for measure, (unit, _) in MEASURES.items():
        values = figures.get((name, measure))
        if not values:
            continue
        row[measure] = spread(values, unit)
        if name not in ours and any((kvist, measure) in figures for kvist in ours):
            row[measure]["kvist_times_better"] = times_better(best_of(ours, measure, figures), name, measure, figures)
    return row


def times_better(name: str, other: str, measure: str, figures: Figures) -> float:
    """By the medians of one measure."""
    _, more_is_better = MEASURES[measure]
    ratio = statistics.median(figures[name, measure]) / statistics.median(figures[other, measure])
    return ratio if more_is_better else 1 / ratio


def best_of(names: Collection[str], measure: str, figures: Figures) -> str:
    """Which of `names` has the best median of a measure. Raises ValueError if none has figures of it."""
    _, more_is_better = MEASURES[measure]
    choose = max if more_is_better else min
    return choose(
        (name for name in names if (name, measure) in figures),
        key=lambda name: statistics.median(figures[name, measure]),
    )


def fastest_peers(figures: Figures, ours: Collection[str]) -> dict[str, dict[str, Any]]:
    """For each measure the best of `ours`, the peer nearest to it or furthest ahead of it, and their ratio."""
    best: dict[str, dict[str, Any]] = {}
    for measure in MEASURES:
        names = [name for name, what in figures if what == measure]
        peers, kvists = [name for name in names if name not in ours], [name for name in names if name in ours]
        if peers and kvists:
            kvist, peer = best_of(kvists, measure, figures), best_of(peers, measure, figures)
            ratio = times_better(kvist, peer, measure, figures)
            best[measure] = {"kvist": kvist, "peer": peer, "kvist_times_better": ratio}
    return best
