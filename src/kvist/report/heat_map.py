"""A table of numbers with shades: for what depends on two choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvist.report.plot import Cell, Plot, format_cell
from kvist.report.svg_figure import draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def heat_map(
    title: str,
    x_names: Sequence[str],
    y_names: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    x_label: str,
    y_label: str,
    value_label: str,
) -> Plot:
    """values: a row for each of `y_names`. Each cell shows its number too; None is an empty cell."""

    def paint(axes: Axes) -> None:
        shades = [[float("nan") if value is None else value for value in row] for row in values]
        known = [value for row in values for value in row if value is not None]
        middle = (min(known) + max(known)) / 2 if known else 0.0
        axes.pcolormesh(shades, cmap="Greys", vmin=min(known, default=0.0), vmax=max(known, default=1.0))
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                colour = "#ffffff" if value is not None and value > middle else "#000000"
                axes.text(x + 0.5, y + 0.5, format_cell(value), ha="center", va="center", color=colour, fontsize=7.5)
        axes.set_xticks([x + 0.5 for x in range(len(x_names))], x_names)
        axes.set_yticks([y + 0.5 for y in range(len(y_names))], y_names)
        axes.invert_yaxis()
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.grid(visible=False)

    rows: list[list[Cell]] = [[name, *row] for name, row in zip(y_names, values, strict=True)]
    return Plot(
        title=title,
        svg=draw(paint, title=title, height_inches=0.9 + 0.3 * len(y_names)),
        description=f"{value_label} by {y_label} (rows) and {x_label} (columns); darker is more.",
        headers=(f"{y_label} / {x_label}", *x_names),
        rows=rows,
    )
