"""A step trace on a page: what steps were composed of, where their time went, and what requests went through."""

from __future__ import annotations

from collections.abc import Iterable

from kvist.metrics.trace_reader import Event, read_steps
from kvist.metrics.trace_summary import TraceSummary, summarize_steps
from kvist.report import Report, Segment, TimelineRow, step_composition, timeline, waterfall
from kvist.report.plot import Cell

MAX_OPERATIONS = 10  # bars of a waterfall; what is smaller is one bar


def add_trace(report: Report, events: Iterable[Event]) -> None:
    """Add the sections of one trace, as metrics.trace_reader reads it."""
    events = list(events)
    for event in events:
        if event["name"] == "process_labels":
            report.add_text(event["args"]["labels"])
    records = list(read_steps(events))
    summary = summarize_steps(records)
    report.add_table(
        ("", "steps", "seconds", "share", "median ms", "P99 ms", "decode tokens", "prefill tokens", "cached tokens"),
        _kind_rows(summary),
        caption="Steps",
    )
    report.add_plot(step_composition("What steps are composed of", records))
    for kind in summary.kinds:
        if kind.num_timed:
            per_step_ms = [(name, seconds / kind.num_timed * 1e3) for name, seconds in kind.operations_s.items()]
            report.add_plot(
                waterfall(f"Where a {kind.kind} step's time goes", _largest(per_step_ms), y_label="ms per step"),
                caption=f"{kind.num_timed:,} of {kind.num_steps:,} steps were timed.",
            )
    rows = request_rows(events)
    if rows:
        report.add_plot(timeline("Requests", rows))


def request_rows(events: Iterable[Event]) -> list[TimelineRow]:
    """A row for each request of a trace, in the order in which they came; times since the trace began."""
    rows: dict[int, TimelineRow] = {}  # of the request that each track shows now
    parts: dict[int, tuple[list[Segment], list[float]]] = {}
    decoding_since_s: dict[int, float] = {}
    done: list[TimelineRow] = []
    start_s: float | None = None
    for event in events:
        if event.get("pid") != 2 or event["ph"] == "M":
            continue
        tid, time_s = event["tid"], event["ts"] / 1e6
        start_s = time_s if start_s is None else start_s
        time_s -= start_s
        segments, marks = parts.get(tid, ([], []))
        if event["ph"] == "B" and event.get("cat") == "request":
            parts[tid] = ([], [])
            rows[tid] = TimelineRow(event["name"], *parts[tid])
            done.append(rows[tid])
        elif event["ph"] == "B":
            decoding_since_s[tid] = time_s
        elif event["ph"] == "E" and tid in decoding_since_s:
            segments.append(Segment(decoding_since_s.pop(tid), time_s, "decode"))
        elif event["ph"] == "X":
            segments.append(Segment(time_s, time_s + event["dur"] / 1e6, event["name"]))
        elif event["ph"] == "i":
            marks.append(time_s)
    return done


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
