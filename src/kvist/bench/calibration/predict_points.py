"""Predicts every row of a file of points: a number in its unit and an error bar, or the reason why not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kvist.bench.calibration.fit import Placed, place
from kvist.bench.calibration.load_shape import load_shape
from kvist.bench.calibration.passes import PASS_KINDS, predict_passes
from kvist.bench.calibration.points import BadPoint, Point
from kvist.bench.calibration.serving import ServingPredictor
from kvist.bench.calibration.steady_state import predict_steady
from kvist.bench.worker_processes import worker_processes
from kvist.core.errors import KvistError
from kvist.costmodel.calibrated_model import calibrated_model
from kvist.costmodel.calibration import Calibration, shipped_calibration
from kvist.costmodel.nearest_entry import error_share, nearest_entry
from kvist.costmodel.roofline import RooflineModel
from kvist.execution.threads import granted_cores

PredictLoad = Callable[[Point, RooflineModel], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """In the unit of the row's metric. error_bar: half width that 9 of 10 rows kept to. why: how, or why not."""

    predicted: float | None
    error_bar: float | None
    why: str


def predict_points(
    rows: Sequence[Point | BadPoint], *, calibration: Calibration | None = None, simulates: bool = True
) -> list[Prediction]:
    """One prediction for each row, in order. Never raises for what a row holds.

    simulates: serving rows by playing their load; else by their steady state, in a moment.
    """
    known = calibration or shipped_calibration()
    answers: dict[int, Prediction] = {}
    runs: dict[int, list[tuple[int, Point]]] = defaultdict(list)  # by hash: simulated once for all metrics of a run
    for number, row in enumerate(rows):
        if simulates and isinstance(row, Point) and load_shape(row) is not None:
            runs[row.row_hash].append((number, row))
        else:
            answers[number] = predict_point(row, known, predict_steady)
    if runs:
        # The longest first, so that no worker is left with one at the end.
        groups = sorted(runs.values(), key=_size, reverse=True)
        with worker_processes(granted_cores()) as pool:
            for group, found in zip(groups, pool.map(partial(_predict_run, calibration=known), groups), strict=True):
                answers |= {number: answer for (number, _), answer in zip(group, found, strict=True)}
    return [answers[number] for number in range(len(rows))]


def _predict_run(rows: Sequence[tuple[int, Point]], calibration: Calibration) -> list[Prediction]:
    predictor = ServingPredictor()
    return [predict_point(row, calibration, predictor.predict) for _, row in rows]


def _is_of_passes(row: Point) -> bool:
    return row.kind in PASS_KINDS and load_shape(row) is None


def _size(rows: Sequence[tuple[int, Point]]) -> int:
    row = rows[0][1]
    return row.batch * (row.input_len + row.output_len)


def predict_point(row: Point | BadPoint, calibration: Calibration, predict_load: PredictLoad) -> Prediction:
    if isinstance(row, BadPoint):
        return _nothing(row.reason)
    try:
        placed = place(row)
        model = calibrated_model(
            placed.placement, generation=row.generation, calibration=calibration, model_name=row.model
        )
        predicted = predict_passes(row, model) if _is_of_passes(row) else predict_load(row, model)
    except KvistError as error:
        return _nothing(str(error))
    except (ArithmeticError, ValueError) as error:  # sizes beyond all reason
        return _nothing(f"the row's numbers are out of range: {error}")
    if predicted is not None and not 0.0 < predicted < math.inf:
        return _nothing(f"the row's numbers are out of range: they give {predicted}")
    if predicted is None:
        return _nothing(f"there is no formula for {row.metric!r} of kind {row.kind!r} with these columns")
    share = _bar(placed, model, calibration)
    return Prediction(
        predicted=float(f"{predicted:.6g}"), error_bar=float(f"{share * predicted:.3g}"), why=model.error_bar.reason
    )


def _bar(placed: Placed, model: RooflineModel, calibration: Calibration) -> float:
    """The share that this kind of row was off by where it was fitted, widened as the model's own bars are."""
    thing = placed.predicted_thing
    nearest = nearest_entry(placed.placement.device.name, placed.point.generation, calibration)
    return error_share(nearest, thing, calibration) * model.error_bar.factor


def _nothing(reason: str) -> Prediction:
    return Prediction(predicted=None, error_bar=None, why=reason)
