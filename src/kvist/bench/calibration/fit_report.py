"""The table of a calibration's errors: how far off predictions are, per device, engine, model and what is predicted."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kvist.bench.calibration.calibrate import RowError
from kvist.bench.calibration.transfer import TransferRow, transfer_table

HEADERS = ("device", "engine", "model", "what", "rows", "fitted", "held out: mean", "median", "model left out")

INTRODUCTION = """# Errors of the cost model

Mean absolute errors of the calibration that kvist brings, written by `kvist calibrate --markdown
docs/costmodel_errors.md`. *fitted*: with all rows. *held out*: each fifth of the rows by a fit to the others.
*model left out*: each model's rows by a fit to the other models'.
What: decode and prefill are passes; itl, ttft, e2e are loads; throughput is tokens per second of static batches.
"""

TRANSFER_HEADERS = ("left out", "rows of", "kind of engine", "what", "rows", "mean", "median", "9 of 10 within")
ELSEWHERE = """
## Where nobody measured

The same rows predicted by what is left without their device, without its sisters too, without their engine, or without
any measurement: as `kvist predict` finds the nearest entry for a device that has none. Error bars there rest on these.
"""


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """Cells as text; the first rows are over all devices, by what is predicted. Shares are mean absolute errors."""

    rows: list[tuple[str, ...]]

    def lines(self) -> list[str]:
        table = [HEADERS, *self.rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(HEADERS))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def error_table(rows: Sequence[RowError]) -> ErrorTable:
    """Group the rows twice: by what is predicted, and by device, engine, model as well."""
    groups: dict[tuple[str, ...], list[RowError]] = defaultdict(list)
    for row in rows:
        groups["", "", "", row.thing].append(row)
    for row in rows:
        groups[(*row.group, row.model, row.thing)].append(row)
    names = sorted(groups, key=lambda name: (name[0] != "", name))
    return ErrorTable([_cells(name, groups[name]) for name in names])


def markdown_tables(table: ErrorTable, transfers: Sequence[TransferRow]) -> str:
    lines = [INTRODUCTION, *_markdown(HEADERS, table.rows), ELSEWHERE]
    return "\n".join([*lines, *_markdown(TRANSFER_HEADERS, transfer_table(transfers))]) + "\n"


def _markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" if cells else f"|{' --- |' * len(headers)}" for cells in (headers, (), *rows)]


def _cells(name: tuple[str, ...], rows: Sequence[RowError]) -> tuple[str, ...]:
    left_out = [abs(row.model_left_out) for row in rows if row.model_left_out is not None]
    held_out = [abs(row.held_out) for row in rows]
    labels = ("all", "all", "all", name[3]) if not name[0] else name
    return (
        *labels,
        str(len(rows)),
        f"{statistics.fmean(abs(row.fitted) for row in rows):.1%}",
        f"{statistics.fmean(held_out):.1%}",
        f"{statistics.median(held_out):.1%}",
        f"{statistics.fmean(left_out):.1%}" if left_out else "",
    )
