"""The report of `kvist bench serve`: its figures, the distributions behind them, and who was served when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvist.bench.trace_report import add_steps
from kvist.metrics.benchmark_result import METRICS, tokens_by_second
from kvist.metrics.served_request import Outcome, ServedRequest
from kvist.metrics.step_record import StepRecord
from kvist.report import Report, Segment, TimelineRow, cdf_plot, line_plot, timeline
from kvist.report.plot import Cell

LATENCIES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Time between tokens",
    "gap": "Time between chunks",
    "e2el": "End-to-end latency",
}
COUNTS = (
    ("requests completed", "completed"),
    ("failed", "failed"),
    ("of these rejected", "rejected"),
    ("unfinished", "unfinished"),
    ("duration, s", "duration"),
    ("requests/s", "request_throughput"),
    ("output tokens/s", "output_throughput"),
    ("all tokens/s", "total_token_throughput"),
    ("most output tokens in a second", "max_output_tokens_per_s"),
    ("most requests open at once", "max_concurrent_requests"),
    ("prompt tokens from the cache, share", "cache_hit_share"),
    ("preemptions", "preemptions"),
    ("within the targets, share", "slo_attainment"),
    ("goodput, requests/s", "request_goodput"),
    ("client's CPU, cores", "client_cpu_share"),
)


def write_report(
    path: Path,
    result: Mapping[str, Any],
    requests: Sequence[ServedRequest],
    steps: Sequence[StepRecord] | None = None,
) -> None:
    """result: the document that is written as JSON; requests: what it is made of; steps: the server's, if known.

    Raises ConfigError without plots.
    """
    report = Report(f"{result['model_id']} under {result['load']}", facts=_facts(result))
    report.add_table(("", "figure"), [(name, result[key]) for name, key in COUNTS], caption="The run in figures")
    report.add_table(*_latency_table(result), caption="Latencies of completed requests, ms")
    if result["errors_by_kind"]:
        report.add_table(("error", "requests"), list(result["errors_by_kind"].items()), caption="What failed")
    done = [request for request in requests if request.is_completed]
    report.add_heading("Latencies")
    for metric, name in LATENCIES.items():
        values = [1e3 * value for request in done for value in METRICS[metric](request)]
        if values and metric != "gap":
            target = _target_ms(result, metric)
            report.add_plot(cdf_plot(name, {result["load"]: values}, x_label="ms", target=target))
    if result.get("rate_search"):
        report.add_heading("Attainment against rate")
        report.add_plot(_attainment_plot(result["rate_search"]))
    report.add_heading("Over time")
    by_second = [(float(second), float(count)) for second, count in enumerate(tokens_by_second(requests))]
    report.add_plot(
        line_plot("Output tokens", {"tokens": by_second}, x_label="seconds", y_label="tokens in that second")
    )
    if steps:
        add_steps(report, [(0, step) for step in steps])
    report.add_plot(timeline("Requests", [_row(request) for request in requests]))
    report.write(path)


def _facts(result: Mapping[str, Any]) -> dict[str, str]:
    rate = result["request_rate"]
    return {
        "command": str(result["command"]),
        "server": f"{result['base_url']}{result['endpoint']}",
        "rate": "all at once" if rate == "inf" else f"{rate:.4g} requests/s",
        "targets": ", ".join(f"{name} {value}" for name, value in result["targets"].items()) or "none",
        "tokens counted by": str(result["token_counting"]),
        "machine": f"{result['machine']['cpu']}, {result['machine']['num_cores_granted']} cores",
        "commit": str(result["commit"]),
        "date": str(result["date"]),
    }


def _latency_table(result: Mapping[str, Any]) -> tuple[Sequence[str], list[list[Cell]]]:
    metrics = [metric for metric in LATENCIES if f"mean_{metric}_ms" in result]
    first = f"_{metrics[0]}_ms" if metrics else "_"
    columns = [key.removesuffix(first) for key in result if key.endswith(first)]
    rows: list[list[Cell]] = [
        [LATENCIES[metric], *(result[f"{column}_{metric}_ms"] for column in columns)] for metric in metrics
    ]
    return ("", *columns), rows


def _target_ms(result: Mapping[str, Any], metric: str) -> float | None:
    """A target that is the same for all requests; multiples are of each one's own length."""
    stated = str(result["targets"].get(metric, ""))
    return float(stated.removesuffix("ms")) if stated.endswith("ms") else None


def _attainment_plot(search: Mapping[str, Any]) -> Any:  # Any: a Plot
    steps = search["steps"]
    series = {
        "attainment": [(step["rate_per_s"], step["good"] / max(step["total"], 1)) for step in steps],
        "95% interval, low": [(step["rate_per_s"], step["low"]) for step in steps],
        "95% interval, high": [(step["rate_per_s"], step["high"]) for step in steps],
    }
    return line_plot("Attainment", series, x_label="requests/s offered", y_label="share within the targets", log_x=True)


def _row(request: ServedRequest) -> TimelineRow:
    return TimelineRow(f"{request.index}", list(_segments(request)))


def _segments(request: ServedRequest) -> Iterator[Segment]:
    if request.sent_s > request.arrival_s + 1e-3:
        yield Segment(request.arrival_s, request.sent_s, "waits for a place")
    first_s = request.first_token_s
    if request.outcome in (Outcome.FAILED, Outcome.REJECTED):
        yield Segment(request.sent_s, request.finished_s, "failed")
        return
    yield Segment(request.sent_s, request.finished_s if first_s is None else first_s, "to the first token")
    if first_s is not None:
        yield Segment(first_s, request.finished_s, "further tokens")
