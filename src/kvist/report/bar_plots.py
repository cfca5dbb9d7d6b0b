"""Bars: figures side by side, and what a whole is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvist.report.plot import Cell, Plot, format_cell
from kvist.report.svg_figure import draw, fill_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUP_WIDTH = 0.8  # of the place of a category


def bar_plot(
    title: str,
    categories: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    y_label: str,
    errors: Mapping[str, Sequence[float | None]] | None = None,
) -> Plot:
    """Horizontal bars: for each category one of each series, say published and measured. None leaves a gap.

    errors: half the width of error bars, by series.
    """
    thickness = GROUP_WIDTH / max(len(series), 1)
    ends = [
        (value or 0.0) + (error or 0.0)
        for name, values in series.items()
        for value, error in zip(values, (errors or {}).get(name, [None] * len(values)), strict=True)
    ]
    longest = max(ends, default=0.0)

    def paint(axes: Axes) -> None:
        for index, (name, values) in enumerate(series.items()):
            places = [i + (index + 0.5) * thickness - GROUP_WIDTH / 2 for i in range(len(categories))]
            spread = (errors or {}).get(name, [None] * len(values))
            axes.barh(
                places,
                [value or 0.0 for value in values],
                thickness * 0.92,
                xerr=[error or 0.0 for error in spread] if any(spread) else None,
                error_kw={"elinewidth": 0.8, "capsize": 2},
                label=name,
                **fill_style(index),
            )
            for place, value, error in zip(places, values, spread, strict=True):
                end = (value or 0.0) + (error or 0.0) + longest * 0.012
                axes.text(end, place, "n/a" if value is None else format_cell(value), va="center", fontsize=7.5)
        axes.set_yticks(range(len(categories)), categories)
        axes.invert_yaxis()
        axes.set_xlim(right=longest * 1.14 or 1.0)
        axes.set_xlabel(y_label)
        axes.grid(visible=False, axis="y")
        if len(series) > 1:
            axes.legend(loc="best")

    rows: list[list[Cell]] = [
        [category, *(values[i] for values in series.values())] for i, category in enumerate(categories)
    ]
    height = 0.9 + len(categories) * max(0.24 * len(series), 0.3)
    return Plot(
        title=title,
        svg=draw(paint, title=title, height_inches=height),
        description=f"Bars of {y_label}.",
        headers=("", *series),
        rows=rows,
    )


def waterfall(title: str, steps: Sequence[tuple[str, float]], *, y_label: str, total: str | None = "total") -> Plot:
    """Each step adds its amount (or takes, if negative) where the last one ended; the sum stands at the end."""

    def paint(axes: Axes) -> None:
        level = 0.0
        bars = [*steps, (total, sum(amount for _, amount in steps))] if total is not None else list(steps)
        top = max((abs(amount) for _, amount in bars), default=0.0)
        for place, (name, amount) in enumerate(bars):
            is_total = total is not None and name == total and place == len(steps)
            start = 0.0 if is_total else level
            style = fill_style(2 if is_total else 0 if amount >= 0 else 3)
            axes.bar(place, amount, 0.7, bottom=start, **style)
            axes.text(place, max(start, start + amount) + top * 0.01, format_cell(amount), ha="center", fontsize=7.5)
            if not is_total:
                axes.plot([place - 0.35, place + 1.35], [start + amount] * 2, color="#666666", linewidth=0.7)
                level += amount
        axes.axhline(0, color="#000000", linewidth=0.7)
        axes.margins(y=0.08)
        axes.set_xticks(range(len(bars)), [str(name) for name, _ in bars])
        if len(bars) > 5:
            for label in axes.get_xticklabels():
                label.set_rotation(30)
                label.set_horizontalalignment("right")
        axes.set_ylabel(y_label)
        axes.grid(visible=False, axis="x")

    whole = sum(amount for _, amount in steps)
    rows: list[list[Cell]] = [[name, amount, _percent(amount, whole)] for name, amount in steps]
    if total is not None:
        rows.append([total, whole, _percent(whole, whole)])
    return Plot(
        title=title,
        svg=draw(paint, title=title, height_inches=3.1),
        description=f"What adds up to {y_label}.",
        headers=("", y_label, "share"),
        rows=rows,
    )


def _percent(amount: float, whole: float) -> str:
    return f"{amount / whole:.1%}" if whole else "–"
