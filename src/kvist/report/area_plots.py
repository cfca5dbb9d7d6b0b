"""Areas over time: what steps are composed of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvist.metrics.step_record import STEP_KINDS, StepRecord
from kvist.report.plot import Cell, Plot
from kvist.report.svg_figure import draw, fill_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BINS = 240


def stacked_area(
    title: str,
    edges: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    x_label: str,
    y_label: str,
    line: tuple[str, Sequence[float]] | None = None,
) -> Plot:
    """Series on top of each other; each value holds between two of `edges`, of which there is one more.

    line: a further series, drawn as a line that is not part of the stack.
    """

    def paint(axes: Axes) -> None:
        floor = [0.0] * (len(edges) - 1)
        for index, (name, values) in enumerate(series.items()):
            top = [low + value for low, value in zip(floor, values, strict=True)]
            axes.fill_between(edges, [*floor, floor[-1]], [*top, top[-1]], step="post", label=name, **fill_style(index))
            floor = top
        if line is not None:
            name, values = line
            axes.step(edges, [*values, values[-1]], where="post", color="#000000", linestyle=(0, (3, 1)), label=name)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.legend(loc="upper right")

    columns = [*series.values(), *([line[1]] if line else [])]
    every = max(-(-(len(edges) - 1) // 50), 1)
    rows: list[list[Cell]] = [
        [float(edges[i]), *(values[i] for values in columns)] for i in range(0, len(edges) - 1, every)
    ]
    return Plot(
        title=title,
        svg=draw(paint, title=title),
        description=f"{y_label} over {x_label}" + (f"; the table has every {every}th value." if every > 1 else "."),
        headers=(x_label, *series, *([line[0]] if line else [])),
        rows=rows,
    )


def step_composition(title: str, records: Sequence[StepRecord], *, num_bins: int = 120) -> Plot:
    """Tokens of the step that is running, over time: decodes, prefill chunks, drafts and padding stacked; tokens read
    from the cache as a line. Each value is the mean over its bin of time; idle time counts as no tokens.
    """
    num_bins = min(num_bins, MAX_BINS)
    width_s = _bin_width_s(records, num_bins)
    means = bin_steps(records, num_bins)
    cached = means.pop("cached")
    kept = {name: values for name, values in means.items() if name in ("decode", "prefill") or any(values)}
    plot = stacked_area(
        title,
        [i * width_s for i in range(num_bins + 1)],
        kept,
        x_label="seconds",
        y_label="tokens of a step",
        line=("cached (not computed)", cached) if any(cached) else None,
    )
    return Plot(
        title=title,
        svg=plot.svg,
        description=f"Tokens of the running step over time: means of {num_bins} bins over {len(records):,} steps.",
        headers=("steps", "number", "tokens", "prefill tokens", "decode tokens", "cached tokens", "seconds"),
        rows=[_kind_row(kind, steps) for kind in STEP_KINDS if (steps := [r for r in records if r.kind == kind])],
    )


_SERIES = {
    "decode": "num_decode_tokens",
    "prefill": "num_prefill_tokens",
    "draft": "num_draft_tokens",
    "padding": "num_padding_tokens",
    "cached": "num_cached_tokens",
}


def bin_steps(records: Sequence[StepRecord], num_bins: int) -> dict[str, list[float]]:
    """By kind of token: the mean over each bin of time of what the running step computes, or reads from the cache."""
    width_s = _bin_width_s(records, num_bins)
    means = {name: [0.0] * num_bins for name in _SERIES}
    for record in records:
        begin = (record.start_s - records[0].start_s) / width_s
        end = (record.end_s - records[0].start_s) / width_s
        for place in range(int(begin), min(int(end) + 1, num_bins)):
            share = min(end, place + 1) - max(begin, place)
            for name, field in _SERIES.items():
                means[name][place] += share * getattr(record, field)
    return means


def _bin_width_s(records: Sequence[StepRecord], num_bins: int) -> float:
    return ((records[-1].end_s - records[0].start_s) if records else 1.0) / num_bins or 1.0


def _kind_row(kind: str, records: Sequence[StepRecord]) -> list[Cell]:
    return [
        kind,
        len(records),
        sum(record.num_tokens for record in records),
        sum(record.num_prefill_tokens for record in records),
        sum(record.num_decode_tokens for record in records),
        sum(record.num_cached_tokens for record in records),
        sum(record.duration_s for record in records),
    ]
