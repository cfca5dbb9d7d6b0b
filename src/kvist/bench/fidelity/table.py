"""A comparison of prediction and engine as text for a terminal, as Markdown, and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvist.bench.fidelity.comparison import METRICS
from kvist.report import Report, bar_plot, page_facts

Document = Mapping[str, Any]  # Any: what JSON holds

HEADERS = ("load", "load factor", "", "measured", "spread", "predicted", "error")
GOAL_HEADERS = ("goal", "bound", "median error", "worst", "median spread", "cells within", "")
CELL_HEADERS = (
    "load", "load factor", "requests", "repeats", "capacities, requests/s", "speed between", "speed of its steps",
    "others", "client CPU"
)  # fmt: skip
PLOTTED = ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "output_throughput")


def text_lines(document: Document) -> Iterator[str]:
    for title, goals in verdicts(document):
        yield title
        yield from _text_table(GOAL_HEADERS, goal_rows(goals))
        yield ""
    yield from _text_table(HEADERS, metric_rows(document["cells"]))
    yield ""
    yield from _text_table(CELL_HEADERS, cell_rows(document["cells"]))
    yield from (f"! {text}" for text in disturbed(document["cells"]))


def markdown_lines(document: Document) -> Iterator[str]:
    """The generated part of docs/fidelity.md."""
    yield origin(document)
    yield ""
    for title, goals in verdicts(document):
        yield title
        yield ""
        yield from _markdown_table(GOAL_HEADERS, goal_rows(goals))
        yield ""
    yield from _markdown_table(HEADERS, metric_rows(document["cells"]))
    yield ""
    yield from _markdown_table(CELL_HEADERS, cell_rows(document["cells"]))
    for text in disturbed(document["cells"]):
        yield ""
        yield text


def origin(document: Document) -> str:
    """What was measured where, in sentences."""
    machine, setup, profile = document["machine"], document["setup"], document["profile"]
    levels = profile["round_levels"]
    return (
        f"{setup['model']} on {machine['cpu']}, {machine['num_cores_granted']} cores granted, "
        f"executor {setup['executor']}; policy {setup['policy']}, steps of at most {setup['max_num_batched_tokens']} "
        f"tokens and {setup['max_num_seqs']} requests; {setup['repeats']} repeats. "
        f"Profile of {len(levels)} rounds, from {min(levels) - 1.0:+.0%} to {max(levels) - 1.0:+.0%} of their mean: "
        f"the machine's own drift; 9 of 10 steps within {profile['error']:.1%}. "
        f"Commit {', '.join(commit[:12] for commit in document['commits'])}; {document['date'][:10]}."
    )


def verdicts(document: Document) -> Iterator[tuple[str, Sequence[Document]]]:
    """How the goals are kept, by what the prediction was made from."""
    yield (
        "Predicted from the profile, at the speed of its steps that were timed between those of each run:",
        document["goals"],
    )
    yield "From the first profile alone, without what was timed later:", document["goals_by_first_profile"]


def goal_rows(goals: Sequence[Document]) -> list[list[str]]:
    return [
        [
            goal["goal"],
            f"{goal['bound']:.0%}" + (f" or {goal['or_spread']:g}x the spread" if goal["or_spread"] else ""),
            f"{goal['median_error']:.1%}",
            f"{goal['worst_error']:.1%}",
            "-" if goal["median_spread"] is None else f"{goal['median_spread']:.1%}",
            f"{goal['cells_within']} of {goal['cells']}",
            "met" if goal["is_met"] else "missed",
        ]
        for goal in goals
    ]


def metric_rows(cells: Sequence[Document]) -> list[list[str]]:
    rows = []
    for cell in cells:
        by_name = {row["metric"]: row for row in cell["rows"]}
        for metric in METRICS:
            row = by_name.get(metric.field)
            if row is None:
                continue
            form = "{:+.0f}" if metric.field == "preemptions" else "{:+.1%}"
            spread = form.format(row["spread"]).lstrip("+") if row["spread"] is not None else "-"
            values = (metric.form.format(row["measured"]), spread, metric.form.format(row["predicted"]))
            rows.append([cell["scenario"], factor_of(cell), metric.label, *values, form.format(row["error"])])
    return rows


def cell_rows(cells: Sequence[Document]) -> list[list[str]]:
    return [
        [
            cell["scenario"],
            factor_of(cell),
            str(cell["requests"]),
            f"{cell['repeats_counted']} of {cell['repeats']}",
            " ".join(f"{capacity:.3g}" for capacity in cell["capacities_per_s"]),
            _speeds(cell["speeds_between"]),
            " ".join(f"{ratio:.2f}" for ratio in cell["step_time_ratios"]),
            "-" if cell["others_share"] is None else f"{cell['others_share']:.1%}",
            f"{cell['client_cpu_share']:.1%}",
        ]
        for cell in cells
    ]


def _speeds(speeds: Sequence[Sequence[float]]) -> str:
    return " ".join("/".join(f"{each:.2f}" for each in speed) for speed in speeds)


def disturbed(cells: Sequence[Document]) -> Iterator[str]:
    for cell in cells:
        for faults in cell["disturbed"]:
            counts = "not counted" if cell["repeats_counted"] < cell["repeats"] else "counted, as too few are quiet"
            yield f"{cell['scenario']} at {factor_of(cell)}: a disturbed repeat ({counts}): {'; '.join(faults)}."


def factor_of(cell: Document) -> str:
    return "all at once" if cell["load_factor"] is None else f"{cell['load_factor']:g}"


def write_report(path: Path, document: Document) -> None:
    report = Report("Predicted and measured", facts=page_facts(document))
    report.add_text(origin(document))
    for title, goals in verdicts(document):
        report.add_table(GOAL_HEADERS, goal_rows(goals), caption=title)
    for metric in METRICS:
        if metric.field in PLOTTED:
            found = [
                (f"{cell['scenario']} {factor_of(cell)}", row)
                for cell in document["cells"]
                for row in cell["rows"]
                if row["metric"] == metric.field
            ]
            series = {side: [row[side] for _, row in found] for side in ("measured", "predicted")}
            errors = {"measured": [(max(row["values"]) - min(row["values"])) / 2 for _, row in found]}
            report.add_plot(
                bar_plot(metric.label, [label for label, _ in found], series, y_label=metric.label, errors=errors)
            )
    report.add_table(HEADERS, metric_rows(document["cells"]))
    report.add_table(CELL_HEADERS, cell_rows(document["cells"]))
    report.add_text("\n\n".join(disturbed(document["cells"])))
    report.write(path)


def _text_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[place]) for row in (headers, *rows)) for place in range(len(headers))]
    for row in (headers, *rows):
        first, *others = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join((first, *others)).rstrip()


def _markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(headers) + " |"
    yield "| " + " | ".join("---" for _ in headers) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
