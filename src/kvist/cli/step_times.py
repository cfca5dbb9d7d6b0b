"""The step-time model that a cluster file's [step_time] table asks for: a device, a profile, or plain coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvist.cli.cost_arguments import read_calibration, read_model_spec
from kvist.config.cluster_config import ReplicaGroupConfig
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.costmodel.calibrated_model import calibrated_model
from kvist.costmodel.device_catalogue import find_device
from kvist.costmodel.engine_generation import CURRENT, find_generation
from kvist.costmodel.linear_step_time import linear_step_time
from kvist.costmodel.number_format import find_format
from kvist.costmodel.profile_table import ProfileModel, parse_profile
from kvist.costmodel.roofline import Placement
from kvist.costmodel.step_time_model import StepTimeModel

_DEVICE_KEYS = ("device", "model", "dtype", "kv_cache_dtype", "engine", "calibration")


def step_time_of_table(values: Mapping[str, Any], group: ReplicaGroupConfig, *, where: str) -> StepTimeModel:
    """`profile = FILE`; or `device` and `model` (with dtype, engine, ...), split as the group says; or coefficients.

    Any: values as a file gives them. Raises ConfigError.
    """
    if "profile" in values:
        _check(values, ("profile",), where)
        return read_profile(Path(values["profile"]))
    if "device" in values or "model" in values:
        _check(values, _DEVICE_KEYS, where)
        return _device(values, group, where)
    return linear_step_time(values, where=where)


def read_profile(path: Path) -> ProfileModel:
    """The model of a profile file. Raises ConfigError if it cannot be read or is none."""
    try:
        return ProfileModel(parse_profile(path.read_bytes(), str(path)))
    except OSError as error:
        raise ConfigError(f"cannot read the profile {path}: {error.strerror}; `kvist profile` writes one") from error


def _device(values: Mapping[str, Any], group: ReplicaGroupConfig, where: str) -> StepTimeModel:
    for key in ("device", "model"):
        if key not in values:
            raise ConfigError(f"{where} must name both a device and a model; {key} is missing")
    kv_format = find_format(values["kv_cache_dtype"]) if "kv_cache_dtype" in values else None
    placement = Placement(
        model=read_model_spec(values["model"]),
        device=find_device(values["device"]),
        number_format=find_format(values.get("dtype", "bf16")),
        tensor_parallel_size=group.tensor_parallel_size,
        pipeline_parallel_size=group.pipeline_parallel_size,
        kv_element_bytes=None if kv_format is None else min(kv_format.weight_bytes, kv_format.kv_bytes),
    )
    return calibrated_model(
        placement,
        generation=find_generation(values.get("engine", CURRENT)),
        calibration=read_calibration(Path(values["calibration"])) if "calibration" in values else None,
        model_name=values["model"],
    )


def _check(values: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{where} has no key {key!r} beside {known[0]!r}.{did_you_mean(key, known)}")
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {key} must be a text, not {value!r}")
