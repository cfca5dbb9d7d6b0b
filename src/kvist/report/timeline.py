"""Who did what when: a row for each request, with the times that it waited, was prefilled and decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvist.report.plot import Cell, Plot
from kvist.report.svg_figure import draw, fill_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ROWS = 120


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time; equal kinds are drawn alike."""

    start_s: float
    end_s: float
    kind: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """marks_s: moments to point out, such as preemptions."""

    label: str
    segments: Sequence[Segment]
    marks_s: Sequence[float] = ()


def timeline(title: str, rows: Sequence[TimelineRow], *, x_label: str = "seconds") -> Plot:
    """Rows from top to bottom. Of more than MAX_ROWS only so many, evenly picked, are drawn."""
    every = -(-len(rows) // MAX_ROWS) if rows else 1
    drawn = rows[::every]
    kinds = list(dict.fromkeys(segment.kind for row in rows for segment in row.segments))
    height = 0.9 + len(drawn) * (0.2 if len(drawn) <= 30 else 0.05)

    def paint(axes: Axes) -> None:
        for index, kind in enumerate(kinds):
            style = fill_style(index)
            for place, row in enumerate(drawn):
                spans = [(s.start_s, s.end_s - s.start_s) for s in row.segments if s.kind == kind]
                if spans:
                    axes.broken_barh(spans, (place - 0.4, 0.8), **style)
            axes.barh(-1, 0, label=kind, **style)  # for the legend
        marks = [(time_s, place) for place, row in enumerate(drawn) for time_s in row.marks_s]
        if marks:
            axes.plot(*zip(*marks, strict=True), linestyle="none", marker="x", color="#000000", label="preempted")
        labels = [row.label for row in drawn] if len(drawn) <= 30 else []
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
        if not labels:
            axes.set_ylabel(f"{len(drawn)} of {len(rows)} requests" if every > 1 else f"{len(rows)} requests")
        axes.set_ylim(max(len(drawn), 1) - 0.5, -0.5)
        axes.set_xlabel(x_label)
        axes.grid(visible=False, axis="y")
        if kinds:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=len(kinds) + 1, borderaxespad=-1.6)

    return Plot(
        title=title,
        svg=draw(paint, title=title, height_inches=height),
        description=f"Timeline of {len(drawn)} of {len(rows)} rows: {', '.join(kinds)}. Seconds of each in the table.",
        headers=("", "begins", *kinds, "ends"),
        rows=[_table_row(row, kinds) for row in drawn],
    )


def _table_row(row: TimelineRow, kinds: Sequence[str]) -> list[Cell]:
    totals = [sum(s.end_s - s.start_s for s in row.segments if s.kind == kind) for kind in kinds]
    starts, ends = [s.start_s for s in row.segments], [s.end_s for s in row.segments]
    return [row.label, min(starts, default=None), *totals, max(ends, default=None)]
