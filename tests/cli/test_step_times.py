"""A cluster file may name a device, a profile or coefficients."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.costmodel.test_profile_table import TABLE

from kvist.cli.step_times import step_time_of_table
from kvist.config.cluster_config import ReplicaGroupConfig
from kvist.core.errors import ConfigError
from kvist.costmodel.step_work import StepWork

ONE, FOUR = ReplicaGroupConfig(), ReplicaGroupConfig(tensor_parallel_size=4)
WORK = StepWork.of([(1, 500)] * 8, num_sampled=8)


def test_a_device_splits_the_model_as_the_group_says() -> None:
    values = {"device": "H100-80GB-SXM", "model": "llama-3.1-8b", "dtype": "bf16", "engine": "vLLM 0.15.1"}
    one, four = (step_time_of_table(values, group, where="here").predict_s(WORK) for group in (ONE, FOUR))
    assert four < one < 4 * four


def test_a_profile_is_read(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(msgspec.json.encode(TABLE))
    assert step_time_of_table({"profile": str(file)}, ONE, where="here").predict_s(WORK) > 0.006


def test_coefficients_are_taken_as_they_are() -> None:
    assert step_time_of_table({"per_step_s": 0.25}, ONE, where="here").predict_s(WORK) == 0.25


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"device": "h100"}, "model is missing"),
        ({"device": "h100", "model": "llama-3.1-8b", "dtyp": "bf16"}, "Did you mean dtype"),
        ({"device": "h100", "model": 7}, "must be a text"),
        ({"profile": "/nonexistent/profile.json"}, "kvist profile"),
        ({"profile": "p.json", "per_step_s": 1.0}, "no key"),
    ],
)
def test_what_is_wrong_is_said(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        step_time_of_table(values, ONE, where="here")
