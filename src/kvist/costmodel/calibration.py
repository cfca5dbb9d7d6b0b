"""Fitted efficiencies of (device, engine generation) pairs, and which of them to use for a placement.

Written by `kvist calibrate`; kvist brings one made from its measured points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Annotated

import msgspec

from kvist.core.errors import ConfigError
from kvist.costmodel.efficiency import KINDS, Efficiency, KindName
from kvist.costmodel.engine_generation import CURRENT, is_modern
from kvist.costmodel.error_bar import ErrorBar
from kvist.costmodel.roofline import Placement, RooflineModel

SHIPPED = "calibration.json"
LAYOUT_VERSION = 2
_FAMILIES = (
    ("A100-80GB-SXM", "A100-40GB-SXM", "A100-80GB-PCIe", "A100-40GB-PCIe", "A800-80GB-SXM"),
    ("H100-80GB-SXM", "H200-141GB-SXM", "H100-80GB-PCIe", "H800-80GB-SXM", "GH200-96GB", "H20-96GB-SXM"),
)
SAME_FAMILY, OTHER_DEVICE, OTHER_GENERATION, NOTHING = 1.3, 1.8, 2.0, 3.0  # factors on the error bar
NEW_MODEL, FURTHER_THAN_MEASURED = 1.25, 1.5
DEFAULT_BAR = ErrorBar(decode=0.2, prefill=0.25, reason="no measurement")


class CalibrationEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What was fitted for a device and a generation, from how much, and how far off it was on rows held out."""

    device: str
    generation: str
    kind: KindName
    efficiency: dict[str, Annotated[float, msgspec.Meta(gt=0.0)]]
    num_points: int
    errors: dict[str, float]  # by what is predicted: half width that 9 of 10 rows held out kept to, as a share
    fp8_kv_bytes: float  # of a KV element where the weights are fp8
    models: list[str]
    max_tensor_parallel_size: int

    def fitted(self) -> Efficiency:
        try:
            return Efficiency(**self.efficiency, kind=KINDS[self.kind])
        except TypeError as error:
            raise ConfigError(
                f"the calibration of {self.device} and {self.generation} is of another version"
            ) from error


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration file."""

    layout_version: int
    source: str
    entries: list[CalibrationEntry]


class _Layout(msgspec.Struct, frozen=True):
    """What every calibration file begins with, of whatever layout."""

    layout_version: int


def parse_calibration(data: bytes, name: str) -> Calibration:
    """Read a calibration file's bytes. Raises ConfigError if they are none, or of another layout."""
    try:
        version = msgspec.json.decode(data, type=_Layout).layout_version
        if version != LAYOUT_VERSION:
            raise ConfigError(
                f"{name} has layout {version}; this kvist reads {LAYOUT_VERSION}: write it again by `kvist calibrate`"
            )
        return msgspec.json.decode(data, type=Calibration)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{name} is not a calibration file ({error}); `kvist calibrate` writes one") from error


@cache
def shipped_calibration() -> Calibration:
    """The one that kvist brings."""
    return parse_calibration(files("kvist.costmodel").joinpath(SHIPPED).read_bytes(), SHIPPED)


def calibrated_model(
    placement: Placement, *, generation: str = CURRENT, calibration: Calibration | None = None, model_name: str = ""
) -> RooflineModel:
    """The step time model of a placement under an engine of `generation`, by the nearest entry there is.

    Where the placement does not say what keys and values are kept in, the entry does.
    """
    entry, factor, reason = nearest_entry(
        placement.device.name, generation, shipped_calibration() if calibration is None else calibration
    )
    if entry is None:
        return RooflineModel(placement, Efficiency(), DEFAULT_BAR.widened(factor, reason))
    if placement.kv_element_bytes is None and placement.number_format.name == "fp8":
        placement = replace(placement, kv_element_bytes=entry.fp8_kv_bytes)
    if model_name and model_name.lower() not in entry.models:
        factor *= NEW_MODEL
        reason += f"; {model_name} was not measured there"
    if placement.tensor_parallel_size > entry.max_tensor_parallel_size or placement.pipeline_parallel_size > 1:
        factor *= FURTHER_THAN_MEASURED
        reason += f"; measured on up to {entry.max_tensor_parallel_size} ranks"
    errors = entry.errors
    decode = errors.get("decode", errors.get("itl", DEFAULT_BAR.decode))
    bar = ErrorBar(decode=decode, prefill=errors.get("prefill", DEFAULT_BAR.prefill), reason="")
    return RooflineModel(placement, entry.fitted(), bar.widened(factor, reason))


def nearest_entry(device: str, generation: str, calibration: Calibration) -> tuple[CalibrationEntry | None, float, str]:
    """The entry to use, the factor on its error bar, and why."""
    entries = calibration.entries
    family = next((names for names in _FAMILIES if device in names), (device,))
    rules: tuple[tuple[Callable[[CalibrationEntry], bool], float, str], ...] = (
        (lambda e: e.device == device and e.generation == generation, 1.0, "fitted to it"),
        (lambda e: e.device in family and e.generation == generation, SAME_FAMILY, "fitted to a sister of the device"),
        (lambda e: e.generation == generation, OTHER_DEVICE, "fitted to another device"),
        (lambda e: e.device in family and is_modern(e.generation), OTHER_GENERATION, "fitted to other engines"),
    )
    for is_near, factor, words in rules:
        found = [entry for entry in entries if is_near(entry)]
        if found:
            entry = max(found, key=lambda each: (each.device == device, each.num_points, each.device))
            return entry, factor, f"{words}: {entry.device}, {entry.generation}, {entry.num_points} points"
    return None, NOTHING, f"nothing was measured of {device} or of {generation}; data sheet and usual efficiencies"
