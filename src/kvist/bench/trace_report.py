"""A step trace on a page: what steps were composed of, where their time went, and what requests went through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kvist.metrics.step_record import StepRecord
from kvist.metrics.trace_reader import Event, read_events, read_steps
from kvist.metrics.trace_summary import TraceSummary, summarize_steps
from kvist.report import Report, Segment, TimelineRow, step_composition, timeline, waterfall
from kvist.report.plot import Cell

MAX_OPERATIONS = 10  # bars of a waterfall; what is smaller is one bar


def add_trace(report: Report, path: Path) -> None:
    """Add the sections of the trace in `path`. Raises ConfigError if it is none."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        labels: list[str] = []
        steps = sorted(read_steps(_note_labels(read_events(lines), labels)), key=lambda step: step[1].end_s)
    with path.open(encoding="utf-8", errors="replace") as lines:  # again: a large trace's events do not fit memory
        rows = request_rows(read_events(lines))
    for label in labels:
        report.add_text(label)
    add_steps(report, steps)
    if rows:
        report.add_plot(timeline("Requests", rows))


def add_steps(report: Report, steps: Sequence[tuple[int, StepRecord]]) -> None:
    """Add what `steps`, each with the number of its engine, were composed of and where their time went."""
    summary = summarize_steps(steps)
    report.add_table(
        ("", "steps", "seconds", "share", "median ms", "P99 ms", "decode tokens", "prefill tokens", "cached tokens"),
        _kind_rows(summary),
        caption="Steps" if summary.num_engines < 2 else f"Steps of {summary.num_engines} engines",
    )
    report.add_plot(step_composition("What steps are composed of", [record for _, record in steps]))
    for kind in summary.kinds:
        if kind.num_timed:
            per_step_ms = [(name, seconds / kind.num_timed * 1e3) for name, seconds in kind.operations_s.items()]
            report.add_plot(
                waterfall(f"Where a {kind.kind} step's time goes", _largest(per_step_ms), y_label="ms per step"),
                caption=f"{kind.num_timed:,} of {kind.num_steps:,} steps were timed.",
            )


def request_rows(events: Iterable[Event]) -> list[TimelineRow]:
    """A row for each request of a trace, in the order in which they came; times since the first did."""
    parts: dict[tuple[int, int], tuple[list[Segment], list[float]]] = {}  # of the request that each track shows now
    decoding_since_s: dict[tuple[int, int], float] = {}
    rows: list[TimelineRow] = []
    start_s: float | None = None
    for event in events:
        track = (event.get("pid", 0), event.get("tid", 0))
        if event.get("cat") == "request":
            start_s = event["ts"] / 1e6 if start_s is None else start_s
            parts[track] = ([], [])
            rows.append(TimelineRow(event["name"], *parts[track]))
        if start_s is None or track not in parts or "ts" not in event:
            continue
        time_s = event["ts"] / 1e6 - start_s
        segments, marks = parts[track]
        if event["ph"] == "B" and event["name"] == "decode":
            decoding_since_s[track] = time_s
        elif event["ph"] == "E" and track in decoding_since_s:
            segments.append(Segment(decoding_since_s.pop(track), time_s, "decode"))
        elif event["ph"] == "X":
            segments.append(Segment(time_s, time_s + event["dur"] / 1e6, event["name"]))
        elif event["ph"] == "i":
            marks.append(time_s)
    return rows


def _note_labels(events: Iterable[Event], labels: list[str]) -> Iterator[Event]:
    for event in events:
        if event.get("name") == "process_labels":
            labels.append(str(event.get("args", {}).get("labels", "")))
        yield event


def _kind_rows(summary: TraceSummary) -> list[list[Cell]]:
    def share(seconds: float) -> str:
        return f"{seconds / summary.wall_s:.1%}" if summary.wall_s else "–"

    rows: list[list[Cell]] = [
        [
            kind.kind, kind.num_steps, kind.total_s, share(kind.total_s), kind.median_s * 1e3, kind.p99_s * 1e3,
            kind.num_decode_tokens, kind.num_prefill_tokens, kind.num_cached_tokens,
        ]
        for kind in summary.kinds
    ]  # fmt: skip
    rows.append(["idle", None, summary.idle_s, share(summary.idle_s), *[None] * 5])
    return rows


def _largest(amounts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The largest, and the sum of all others."""
    falling = sorted(amounts, key=lambda amount: -amount[1])
    rest = sum(value for _, value in falling[MAX_OPERATIONS:])
    return falling[:MAX_OPERATIONS] + ([("all others", rest)] if rest else [])
