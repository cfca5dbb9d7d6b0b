"""A calibration: fitted efficiencies of (device, engine generation) pairs, and how far off they are elsewhere.

Written by `kvist calibrate`; kvist brings one made from its measured points.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

import msgspec

from kvist.core.errors import ConfigError
from kvist.costmodel.efficiency import KINDS, NUMBERS, Efficiency, KindName

SHIPPED = "calibration.json"
LAYOUT_VERSION = 2
Rule = Literal["same", "sister", "device", "engine", "nothing"]  # see `nearest_entry`


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
        if set(self.efficiency) != set(NUMBERS):
            raise ConfigError(
                f"the calibration of {self.device} and {self.generation} has {', '.join(self.efficiency)}; "
                f"it needs {', '.join(NUMBERS)}"
            )
        return Efficiency(**self.efficiency, kind=KINDS[self.kind])


class TransferError(msgspec.Struct, frozen=True, kw_only=True):
    """How far off rows were that were predicted from elsewhere: by the rule that found it, and the kind of engine."""

    rule: Rule
    kind: KindName
    thing: str
    num_points: int
    error: float  # half width that 9 of 10 kept to, as a share


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration file."""

    layout_version: int
    source: str
    entries: list[CalibrationEntry]
    transfers: list[TransferError] = []


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
        calibration = msgspec.json.decode(data, type=Calibration)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{name} is not a calibration file ({error}); `kvist calibrate` writes one") from error
    for entry in calibration.entries:
        entry.fitted()
    return calibration


@cache
def shipped_calibration() -> Calibration:
    """The one that kvist brings."""
    return parse_calibration(files("kvist.costmodel").joinpath(SHIPPED).read_bytes(), SHIPPED)
