"""The step-time model that a cluster file's [step_time] table asks for: a profile, or plain coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.costmodel.linear_step_time import linear_step_time
from kvist.costmodel.profile_table import ProfileModel, parse_profile
from kvist.costmodel.step_time_model import StepTimeModel

_OF_REPLICAS = ("device", "model", "dtype", "kv_cache_dtype", "engine")


def step_time_of_table(values: Mapping[str, Any], *, where: str) -> StepTimeModel:
    """`profile = FILE`, or coefficients.

    Any: values as a file gives them. Raises ConfigError.
    """
    for key, value in values.items():
        if key in _OF_REPLICAS:
            raise ConfigError(
                f"{where} names a {key}; a device, a model and their like stand in the table of their replicas: write "
                f"{key} = {value!r} below [[replicas]], and no step_time"
            )
        if "profile" in values and key != "profile":
            raise ConfigError(f"{where} has no key {key!r} beside 'profile'.{did_you_mean(key, ['profile'])}")
    if "profile" not in values:
        return linear_step_time(values, where=where)
    if not isinstance(values["profile"], str):
        raise ConfigError(f"{where}: profile must be a text, not {values['profile']!r}")
    return read_profile(Path(values["profile"]))


def read_profile(path: Path) -> ProfileModel:
    """The model of a profile file. Raises ConfigError if it cannot be read or is none."""
    try:
        return ProfileModel(parse_profile(path.read_bytes(), str(path)))
    except OSError as error:
        raise ConfigError(f"cannot read the profile {path}: {error.strerror}; `kvist profile` writes one") from error
