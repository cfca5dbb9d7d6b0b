"""The step time model of a placement by a calibration, with an error bar that says how far it was carried."""

from __future__ import annotations

from dataclasses import replace

from kvist.costmodel.calibration import Calibration, shipped_calibration
from kvist.costmodel.efficiency import Efficiency
from kvist.costmodel.engine_generation import CURRENT
from kvist.costmodel.error_bar import ErrorBar
from kvist.costmodel.nearest_entry import NearestEntry, error_share, nearest_entry
from kvist.costmodel.roofline import Placement, RooflineModel

NEW_MODEL, FURTHER_THAN_MEASURED = 1.25, 1.5  # factors on the error bar


def calibrated_model(
    placement: Placement, *, generation: str = CURRENT, calibration: Calibration | None = None, model_name: str = ""
) -> RooflineModel:
    """The step time model of a placement under an engine of `generation`, by the nearest entry there is.

    Where the placement does not say what keys and values are kept in, the entry does.
    """
    known = shipped_calibration() if calibration is None else calibration
    nearest = nearest_entry(placement.device.name, generation, known)
    entry, reason, factor = nearest.entry, nearest.reason, 1.0
    if entry is None:
        return RooflineModel(placement, Efficiency(), _bar(nearest, known, factor, reason))
    if placement.kv_element_bytes is None and placement.number_format.name == "fp8":
        placement = replace(placement, kv_element_bytes=entry.fp8_kv_bytes)
    if model_name and model_name.lower() not in entry.models:
        factor *= NEW_MODEL
        reason += f"; {model_name} was not measured there"
    if placement.tensor_parallel_size > entry.max_tensor_parallel_size or placement.pipeline_parallel_size > 1:
        factor *= FURTHER_THAN_MEASURED
        reason += f"; measured on up to {entry.max_tensor_parallel_size} ranks"
    return RooflineModel(placement, entry.fitted(), _bar(nearest, known, factor, reason))


def _bar(nearest: NearestEntry, calibration: Calibration, factor: float, reason: str) -> ErrorBar:
    has_decode = nearest.entry is not None and "decode" in nearest.entry.errors
    decode = error_share(nearest, "decode" if has_decode or nearest.entry is None else "itl", calibration)
    prefill = error_share(nearest, "prefill", calibration)
    return ErrorBar(decode=decode, prefill=prefill, reason="").widened(factor, reason)
