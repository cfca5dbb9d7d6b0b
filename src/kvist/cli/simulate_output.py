"""What `kvist simulate` prints, and its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvist.report.bar_plots import bar_plot
from kvist.report.line_plots import cdf_plot, line_plot
from kvist.report.page import Report
from kvist.simulator.links import NS_PER_S
from kvist.simulator.simulation_result import SimulationResult

_ROWS = (
    ("completed", "completed requests", "{:,}"),
    ("failed", "refused or failed", "{:,}"),
    ("rejected", "of these rejected by the router", "{:,}"),
    ("duration", "virtual time, s", "{:,.1f}"),
    ("request_throughput", "requests/s", "{:,.3f}"),
    ("output_throughput", "output tokens/s", "{:,.1f}"),
    ("cache_hit_share", "prompt tokens from caches", "{:.1%}"),
    ("preemptions", "preemptions", "{:,}"),
    ("slo_attainment", "SLO attainment", "{:.1%}"),
    ("request_goodput", "goodput, requests/s", "{:,.3f}"),
)


def result_lines(document: Mapping[str, Any]) -> list[str]:
    """A short table of the result. Any: what JSON holds."""
    width = max(len(label) for _, label, _ in _ROWS)
    lines = [
        f"{label:<{width}}  {form.format(document[name])}" for name, label, form in _ROWS if document[name] is not None
    ]
    lines.append("")
    lines.append(f"{'ms':<{width}}  {'mean':>10} {'median':>10} {'p90':>10} {'p99':>10}")
    for metric, label in (("ttft", "time to first token"), ("tpot", "time per output token"), ("e2el", "end to end")):
        values = [document[f"{kind}_{metric}_ms"] for kind in ("mean", "median", "p90", "p99")]
        if None not in values:
            lines.append(f"{label:<{width}}  " + " ".join(f"{value:>10,.2f}" for value in values))
    return lines


def write_report(path: Path, document: Mapping[str, Any], result: SimulationResult) -> None:
    """A page with the distributions, the replicas and the links."""
    page = Report(
        f"Simulation of {document['workload']}",
        facts={
            "command": str(document["command"]),
            "commit": str(document["commit"]),
            "replicas": ", ".join(document["replica_groups"]),
            "router": str(document["router"]),
            "events": str(document["event_digest"]),
        },
    )
    page.add_text(
        "All times are virtual. Schedulers, caches and router are those that serve; step times are predicted."
    )
    page.add_table(["", "value"], [[label, document[name]] for name, label, _ in _ROWS if document[name] is not None])
    done = [request for request in result.requests if request.outcome == "finished"]
    ttfts = [request.ttft_ns / NS_PER_S for request in done if request.ttft_ns is not None]
    tpots = [
        (request.token_times_ns[-1] - request.token_times_ns[0]) / NS_PER_S / (len(request.token_times_ns) - 1)
        for request in done
        if len(request.token_times_ns) > 1
    ]
    page.add_plot(cdf_plot("Time to first token", {"requests": ttfts}, x_label="s", log=True))
    page.add_plot(cdf_plot("Time per output token", {"requests": tpots}, x_label="s"))
    points = [(request.arrival_ns / NS_PER_S, request.ttft_ns / NS_PER_S) for request in done if request.ttft_ns]
    if points:
        thinned = points[:: max(len(points) // 2_000, 1)]
        page.add_plot(
            line_plot(
                "Time to first token over the run", {"requests": thinned}, x_label="arrival, s", y_label="TTFT, s"
            )
        )
    replicas = document["replicas"]
    page.add_plot(
        bar_plot(
            "Utilization of the replicas",
            [f"{replica['replica']} {replica['group']}" for replica in replicas],
            {"share of the time that it computes": [replica["utilization"] for replica in replicas]},
            y_label="share of time",
        )
    )
    page.add_table(
        ["link", "GB carried"], [[name, num_bytes / 1e9] for name, num_bytes in document["link_bytes"].items()]
    )
    page.write(path)
