"""A drawn plot with the numbers that it shows, for readers who cannot see it or want to copy them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """svg: an <svg> element. description: what is drawn, in a sentence. headers, rows: its numbers as a table."""

    title: str
    svg: str
    description: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def format_cell(value: Cell) -> str:
    """Numbers to about four digits, so that columns can be compared; nothing for None."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100 or size == 0:
        return f"{value:.0f}" if value == round(value) else f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"
