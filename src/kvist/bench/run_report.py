"""Stored runs side by side on a page: results of `kvist bench serve` or `kvist simulate`, also of other servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvist.core.errors import ConfigError
from kvist.report import Plot, Report, Segment, TimelineRow, bar_plot, cdf_plot, line_plot, timeline
from kvist.report.plot import Cell

Document = Mapping[str, Any]  # Any: what JSON holds

FIGURES = (
    ("completed", "requests completed"),
    ("failed", "failed"),
    ("rejected", "of these rejected"),
    ("duration", "duration, s"),
    ("request_throughput", "requests/s"),
    ("output_throughput", "output tokens/s"),
    ("cache_hit_share", "share of prompt tokens from the cache"),
    ("preemptions", "preemptions"),
    ("slo_attainment", "share within the targets"),
    ("request_goodput", "goodput, requests/s"),
)
LATENCIES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Time between tokens",
    "e2el": "End-to-end latency",
}
# Lists with an element for each request.
DETAILS: Mapping[str, Any] = {
    "ttfts": list[float | None],
    "itls": list[list[float]],
    "start_times": list[float],
    "end_times": list[float],
}
PERCENTILES = ("mean", "median", "p90", "p95", "p99")


class _RateStep(msgspec.Struct):
    rate_per_s: float
    good: int
    total: int


class _RateSearch(msgspec.Struct):
    steps: list[_RateStep]


def check_run(document: Document) -> None:
    """Raise ConfigError if a field that `add_runs` shows holds something else than it should."""
    numbers = [name for name, _ in FIGURES] + [f"{part}_{metric}_ms" for metric in LATENCIES for part in PERCENTILES]
    try:
        for name in numbers:
            msgspec.convert(document.get(name), float | None)
        msgspec.convert(document.get("rate_search"), _RateSearch | None)
        details = {name: msgspec.convert(document[name], kind) for name, kind in DETAILS.items() if name in document}
    except msgspec.ValidationError as error:
        raise ConfigError(f"this is no result of a benchmark that a page can be made of: {error}") from error
    if len({len(values) for values in details.values()}) > 1:
        raise ConfigError(f"this result is damaged: {', '.join(details)} have different lengths")


def is_run(document: Document) -> bool:
    return "request_throughput" in document and "duration" in document


def add_runs(report: Report, runs: Mapping[str, Document]) -> None:
    """Add the figures and latencies of `runs`, by name. Curves need results that hold each request."""
    names = list(runs)
    rows: list[list[Cell]] = [
        [label, *(run.get(key) for run in runs.values())]
        for key, label in FIGURES
        if any(run.get(key) is not None for run in runs.values())
    ]
    report.add_table(("", *names), rows, caption="The runs in figures")
    latency_rows: list[list[Cell]] = [
        [f"{label}, {percent}", *(run.get(f"{percent}_{metric}_ms") for run in runs.values())]
        for metric, label in LATENCIES.items()
        for percent in PERCENTILES
        if any(run.get(f"{percent}_{metric}_ms") is not None for run in runs.values())
    ]
    report.add_table(("ms", *names), latency_rows, caption="Latencies of completed requests")
    report.add_heading("Latencies")
    for metric, label in LATENCIES.items():
        report.add_plot(_latency_plot(label, metric, runs))
    searched = {name: run["rate_search"]["steps"] for name, run in runs.items() if run.get("rate_search")}
    if searched:
        series = {
            name: [(step["rate_per_s"], step["good"] / max(step["total"], 1)) for step in steps]
            for name, steps in searched.items()
        }
        report.add_heading("Attainment against rate")
        x_label, y_label = "requests/s offered", "share within the targets"
        report.add_plot(line_plot("Attainment", series, x_label=x_label, y_label=y_label, target=0.9, log_x=True))
    for name, run in runs.items():
        if "ttfts" in run and "end_times" in run:
            report.add_plot(timeline(f"Requests of {name}", _rows(run)))


def _latency_plot(label: str, metric: str, runs: Mapping[str, Document]) -> Plot:
    """Distributions where all runs hold them, else bars of their percentiles."""
    values = {name: _values_ms(run, metric) for name, run in runs.items()}
    if all(values.values()):
        return cdf_plot(label, values, x_label="ms")
    columns = [percent for percent in PERCENTILES if any(f"{percent}_{metric}_ms" in run for run in runs.values())]
    bars = {name: [run.get(f"{percent}_{metric}_ms") for percent in columns] for name, run in runs.items()}
    return bar_plot(label, columns, bars, y_label="ms")


def _values_ms(run: Document, metric: str) -> list[float]:
    """Each value of a detailed result; nothing if it has none."""
    if not {"ttfts", "itls", "end_times", "start_times"} <= run.keys():
        return []
    if metric == "ttft":
        return [1e3 * value for value in run["ttfts"] if value is not None]
    if metric == "itl":
        return [1e3 * value for values in run["itls"] for value in values]
    if metric == "tpot":
        return [1e3 * sum(values) / len(values) for values in run["itls"] if values]
    return [1e3 * (end - start) for start, end in zip(run["start_times"], run["end_times"], strict=True)]


def _rows(run: Document) -> Sequence[TimelineRow]:
    rows = []
    columns = (run["start_times"], run["ttfts"], run["end_times"])
    for index, (start_s, ttft_s, end_s) in enumerate(zip(*columns, strict=True)):
        first_s = end_s if ttft_s is None else start_s + ttft_s
        segments = [Segment(start_s, first_s, "to the first token"), Segment(first_s, end_s, "further tokens")]
        rows.append(TimelineRow(str(index), segments))
    return rows
