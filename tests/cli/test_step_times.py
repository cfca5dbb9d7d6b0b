"""A cluster file's step times: of a profile, of coefficients, or predicted for what its replicas run on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.costmodel.test_profile_table import TABLE

from kvist.cli.step_times import step_time_of_table
from kvist.config.load_cluster import parse_cluster
from kvist.core.errors import ConfigError
from kvist.costmodel.step_work import StepWork
from kvist.simulator.placed_cluster import place_cluster

WORK = StepWork.of([(1, 500)] * 8, num_sampled=8)


def predicted_s(*lines: str) -> float:
    text = "\n".join(["[[replicas]]", 'model = "llama-3.1-8b"', 'device = "H100-80GB-SXM"', *lines])
    config, models = place_cluster(parse_cluster(text, "here").config, {})
    return models[config.groups[0].name].predict_s(WORK)


def test_a_device_splits_the_model_as_the_group_says() -> None:
    one, four = predicted_s(), predicted_s("tensor_parallel_size = 4")
    assert four < one < 4 * four


def test_a_group_may_name_its_engine_and_the_format_of_its_cache() -> None:
    times = {predicted_s(), predicted_s('engine = "vLLM 0.3"'), predicted_s('kv_cache_dtype = "fp8"')}
    assert len(times) == 3
    with pytest.raises(ConfigError, match="engine 'foo' is not known"):
        predicted_s('engine = "foo"')


def test_a_profile_is_read(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(msgspec.json.encode(TABLE))
    assert step_time_of_table({"profile": str(file)}, where="here").predict_s(WORK) > 0.006


def test_coefficients_are_taken_as_they_are() -> None:
    assert step_time_of_table({"per_step_s": 0.25}, where="here").predict_s(WORK) == 0.25


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"device": "h100"}, r"device = 'h100' below \[\[replicas\]\]"),
        ({"profile": 7}, "must be a text"),
        ({"profile": "/nonexistent/profile.json"}, "kvist profile"),
        ({"profile": "p.json", "per_step_s": 1.0}, "no key"),
    ],
)
def test_what_is_wrong_is_said(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        step_time_of_table(values, where="here")
