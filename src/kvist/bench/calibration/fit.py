"""Fits efficiencies to measured points: one set for each device and engine generation.

Each number is drawn to a prior, so that few points move it little; outliers count less. Rows are held out by hash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvist.bench.calibration.least_squares import minimize, robust_cost
from kvist.bench.calibration.passes import PASS_KINDS, predict_passes
from kvist.bench.calibration.points import BadPoint, Point
from kvist.bench.calibration.steady_state import predict_steady
from kvist.core.errors import ConfigError
from kvist.costmodel.device_catalogue import find_device
from kvist.costmodel.efficiency import GRAPHS, LAUNCHES, NUMBERS, PRIORS, Efficiency
from kvist.costmodel.engine_generation import is_modern
from kvist.costmodel.error_bar import ErrorBar
from kvist.costmodel.model_catalogue import find_model_spec
from kvist.costmodel.number_format import find_format
from kvist.costmodel.roofline import Placement, RooflineModel

NUM_FOLDS = 5
THINGS = (
    ("ttft", "ttft"), ("tpot", "itl"), ("itl", "itl"), ("tok_s", "throughput"), ("req_s", "throughput"), ("e2e", "e2e")
)  # fmt: skip
NO_BAR = ErrorBar(decode=0.0, prefill=0.0, reason="")
# Standard deviations of the logarithms under the prior, of the fitted numbers.
SPREAD = {
    "gemm": 0.12, "memory": 0.15, "prefill_attention": 0.5, "decode_attention": 0.2,
    "layer_s": 0.7, "host_s": 1.0, "sequence_s": 1.0, "request_s": 1.0,
}  # fmt: skip
DEVIATION = {"fit-of-measurements": 0.15}  # expected of log(predicted / measured), by the quality of a row
MEASURED_DEVIATION, OPEN_TTFT_DEVIATION, CLOSED_TTFT_DEVIATION = 0.08, 0.15, 0.4
BF16_BYTES, FP8_BYTES = 2.0, 1.0


@dataclass(frozen=True, slots=True)
class Placed:
    """A point whose names are all known."""

    point: Point
    placement: Placement

    @property
    def group(self) -> tuple[str, str]:
        return self.placement.device.name, self.point.generation

    @property
    def predicted_thing(self) -> str:
        """What error bars are kept for apart."""
        metric = self.point.metric
        for word, thing in (
            ("ttft", "ttft"),
            ("tpot", "itl"),
            ("itl", "itl"),
            ("tok_s", "throughput"),
            ("req_s", "throughput"),
        ):
            if word in metric:
                return thing
        if "e2e" in metric:
            return "e2e"
        return "decode" if self.point.kind == "decode" else "prefill"


def place(point: Point) -> Placed:
    """Find the model, device and format of a point. Raises ConfigError."""
    placement = Placement(
        model=find_model_spec(point.model),
        device=find_device(point.device),
        number_format=find_format(point.dtype),
        tensor_parallel_size=point.tensor_parallel_size,
    )
    return Placed(point, placement)


def placed_points(rows: Sequence[Point | BadPoint]) -> list[Placed]:
    """The rows that can be fitted: measured, no outliers, all names known, a metric that has a formula."""
    placed = []
    for row in rows:
        if isinstance(row, BadPoint) or not row.may_be_fitted:
            continue
        try:
            each = place(row)
            predicted = predict_quickly(each, Fitted(Efficiency()))
        except (ConfigError, ArithmeticError, ValueError):  # as `predict_point` would say
            continue
        if predicted:
            placed.append(each)
    return placed


@dataclass(frozen=True, slots=True)
class Fitted:
    """fp8_kv_bytes: of a KV element where the weights are fp8; engines differ, and few rows say which it was."""

    efficiency: Efficiency
    fp8_kv_bytes: float = BF16_BYTES


def predict_quickly(placed: Placed, fitted: Fitted) -> float | None:
    """The point's metric without simulating: a sum of passes, or the steady state of a load."""
    placement = placed.placement
    if placement.number_format.name == "fp8":
        placement = replace(placement, kv_element_bytes=fitted.fp8_kv_bytes)
    model = RooflineModel(placement, fitted.efficiency, NO_BAR)
    if placed.point.kind in PASS_KINDS:
        return predict_passes(placed.point, model)
    return predict_steady(placed.point, model)


def fit(points: Sequence[Placed], *, near: Fitted | None = None) -> Fitted:
    """What explains the points best, over kinds of engine and KV formats; `near`: only of these of it, from there."""
    best: tuple[float, Fitted] | None = None
    for trial in [near] if near else _trials(points):
        prior = PRIORS[trial.efficiency.kind.name]
        residuals = _residuals(points, trial)
        spread = [SPREAD[name] for name in NUMBERS]
        found = minimize(residuals, prior.logs(), spread, first=trial.efficiency.logs())
        cost = robust_cost(residuals(found), (found - np.asarray(prior.logs())) / np.asarray(spread))
        if best is None or cost < best[0]:
            best = cost, replace(trial, efficiency=prior.with_logs(found.tolist()))
    assert best is not None
    return best[1]


def _trials(points: Sequence[Placed]) -> list[Fitted]:
    has_fp8_load = any(each.placement.number_format.name == "fp8" and each.point.output_len for each in points)
    kv_bytes = (BF16_BYTES, FP8_BYTES) if has_fp8_load else (BF16_BYTES,)
    all_modern = all(is_modern(each.point.generation) for each in points)
    kinds = (GRAPHS,) if all_modern else (GRAPHS, LAUNCHES)
    return [Fitted(PRIORS[kind.name], size) for kind in kinds for size in kv_bytes]


def held_out_errors(points: Sequence[Placed], fitted: Fitted) -> list[tuple[Placed, float]]:
    """log(predicted / measured) of each point, by a fit to the other folds that begins at the fit to all."""
    errors = []
    for fold in range(NUM_FOLDS):
        test = [each for each in points if each.point.row_hash % NUM_FOLDS == fold]
        train = [each for each in points if each.point.row_hash % NUM_FOLDS != fold]
        if test:
            without = fit(train, near=fitted) if train else Fitted(Efficiency())
            errors += [(each, log_error(each, without)) for each in test]
    return errors


def log_error(placed: Placed, fitted: Fitted) -> float:
    predicted = predict_quickly(placed, fitted)
    assert predicted is not None
    assert placed.point.value
    return math.log(predicted / placed.point.value)


def _residuals(points: Sequence[Placed], trial: Fitted) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    deviations = np.asarray([_deviation(each.point) for each in points])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        fitted = replace(trial, efficiency=trial.efficiency.with_logs(logs.tolist()))
        errors: NDArray[np.float64] = np.asarray([log_error(each, fitted) for each in points]) / deviations
        return errors

    return residuals


def _deviation(point: Point) -> float:
    if "ttft" in point.metric:
        return OPEN_TTFT_DEVIATION if point.rate_per_s else CLOSED_TTFT_DEVIATION
    return DEVIATION.get(point.quality, MEASURED_DEVIATION)
