"""Curves: distributions, and one quantity against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvist.metrics.percentiles import percentile
from kvist.report.plot import Cell, Plot
from kvist.report.svg_figure import draw, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CURVE_POINTS = 400
PERCENTS = (50.0, 90.0, 95.0, 99.0)


def cdf_plot(
    title: str, series: Mapping[str, Sequence[float]], *, x_label: str, target: float | None = None, log: bool = False
) -> Plot:
    """Share of values up to x, a curve for each of `series`; empty ones are left out. The axis ends after P99.5.

    x_label: with its unit. target: a vertical line. log: a logarithmic axis, for values that span decades.
    """
    rising = {name: sorted(values) for name, values in series.items() if values}

    def paint(axes: Axes) -> None:
        for index, (name, values) in enumerate(rising.items()):
            xs, ys = _curve(values)
            style = series_style(index)
            axes.plot(xs, ys, **style, markevery=max(len(xs) // 8, 1), label=f"{name} (n = {len(values):,})")
        if target is not None:
            axes.axvline(target, color="#666666", linewidth=0.9, label=f"target {target:g}")
        if log and all(values[0] > 0 for values in rising.values()):
            axes.set_xscale("log")
        elif rising:
            axes.set_xlim(0, 1.1 * max(percentile(values, 99.5) for values in rising.values()) or 1.0)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel(x_label)
        axes.set_ylabel("share of values up to x")
        if rising:
            axes.legend(loc="lower right")

    rows: list[list[Cell]] = [
        [name, len(values), *(percentile(values, percent) for percent in PERCENTS), values[-1]]
        for name, values in rising.items()
    ]
    return Plot(
        title=title,
        svg=draw(paint, title=title),
        description=f"Cumulative distribution over {x_label}.",
        headers=("", "n", *(f"P{percent:g}" for percent in PERCENTS), "max"),
        rows=rows,
    )


def line_plot(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    y_label: str,
    target: float | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> Plot:
    """Points of each series, joined in their order. target: a horizontal line. log_x, log_y: logarithmic axes."""

    def paint(axes: Axes) -> None:
        for index, (name, points) in enumerate(series.items()):
            axes.plot([x for x, _ in points], [y for _, y in points], **series_style(index), label=name)
        if target is not None:
            axes.axhline(target, color="#666666", linewidth=0.9, label=f"target {target:g}")
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        elif all(y >= 0 for points in series.values() for _, y in points):
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if len(series) > 1 or target is not None:
            axes.legend()

    xs = sorted({x for points in series.values() for x, _ in points})
    by_x = [dict(points) for points in series.values()]
    return Plot(
        title=title,
        svg=draw(paint, title=title),
        description=f"{y_label} against {x_label}.",
        headers=(x_label, *series),
        rows=[[x, *(values.get(x) for values in by_x)] for x in xs],
    )


def _curve(rising: Sequence[float]) -> tuple[list[float], list[float]]:
    """The steps of the distribution, thinned to MAX_CURVE_POINTS; both ends stay."""
    count = len(rising)
    if count <= MAX_CURVE_POINTS:
        indices = list(range(count))
    else:
        indices = [round(i * (count - 1) / (MAX_CURVE_POINTS - 1)) for i in range(MAX_CURVE_POINTS)]
    return [rising[0], *(rising[i] for i in indices)], [0.0, *((i + 1) / count for i in indices)]
