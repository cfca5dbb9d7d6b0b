"""Pages of predictions: a step by its parts, and a file of points beside what was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields

from kvist.bench.calibration.calibrate import RowError
from kvist.bench.calibration.fit_report import HEADERS, ErrorTable
from kvist.bench.calibration.points import BadPoint, Point
from kvist.bench.calibration.predict_points import Prediction
from kvist.costmodel.roofline import StepParts
from kvist.report.bar_plots import bar_plot
from kvist.report.line_plots import cdf_plot
from kvist.report.page import Report

POINT_HEADERS = ("kind", "model", "device", "tp", "batch", "metric", "measured", "predicted", "error bar", "why")


def step_page(lines: Sequence[str], parts: StepParts) -> Report:
    page = Report("A step's time, predicted")
    page.add_text("\n\n".join(lines))
    names = [field.name for field in fields(parts) if getattr(parts, field.name) > 0.0]
    page.add_plot(
        bar_plot(
            "Parts",
            [name.removesuffix("_s").replace("_", " ") for name in names],
            {"ms": [1e3 * getattr(parts, name) for name in names]},
            y_label="ms",
        )
    )
    return page


def points_page(rows: Sequence[Point | BadPoint], predictions: Sequence[Prediction]) -> Report:
    """Errors where a row says what was measured, and all rows."""
    page = Report("Measured points, predicted")
    errors: dict[str, list[float]] = defaultdict(list)
    cells: list[list[str | float | None]] = []
    for row, answer in zip(rows, predictions, strict=True):
        if isinstance(row, BadPoint):
            cells.append(["", "", "", "", "", "", None, None, None, answer.why])
            continue
        if row.value and answer.predicted is not None:
            errors[row.metric].append(100.0 * abs(answer.predicted / row.value - 1.0))
        places = [row.kind, row.model, row.device, str(row.tensor_parallel_size), str(row.batch), row.metric]
        cells.append([*places, row.value, answer.predicted, answer.error_bar, answer.why])
    if errors:
        page.add_plot(cdf_plot("Errors by metric", errors, x_label="absolute error, %"))
    page.add_table(POINT_HEADERS, cells)
    return page


def calibration_page(table: ErrorTable, rows: Sequence[RowError]) -> Report:
    page = Report("Calibration of the cost model")
    held_out: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        held_out[row.thing].append(100.0 * abs(row.held_out))
    page.add_plot(cdf_plot("Errors of rows held out", held_out, x_label="absolute error, %"))
    page.add_table(HEADERS, table.rows)
    return page
