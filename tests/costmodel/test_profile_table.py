"""A profile's model never falls as work grows, meets its knots, and refuses files that are none."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.core.errors import ConfigError
from kvist.costmodel.profile_table import (
    LAYOUT_VERSION,
    ProfileModel,
    ProfilePoint,
    ProfileTable,
    interpolate,
    parse_profile,
)
from kvist.costmodel.step_work import StepWork

TABLE = ProfileTable(
    layout_version=LAYOUT_VERSION,
    model="a test",
    machine={},
    points=[],
    knots=[1, 8, 64],
    knot_s=[0.005, 0.006, 0.02],
    sampled_s=1e-4,
    decode_key_s=1e-6,
    prefill_key_s=2e-6,
    prefill_pair_s=3e-7,
    host_s=1e-4,
    host_sequence_s=1e-5,
    host_token_s=1e-6,
    error=0.05,
    drift=0.0,
)


def test_a_step_is_the_sum_of_its_counts_and_the_hosts_part() -> None:
    model = ProfileModel(TABLE)
    work = StepWork.of([(1, 99)] * 8, num_sampled=8)
    executor_s = 0.006 + 8e-4 + 800e-6
    assert model.executor_s(work) == pytest.approx(executor_s)
    assert model.predict_s(work) == pytest.approx(executor_s + 1e-4 + 8e-5)
    assert model.margin_s(work) == pytest.approx(0.05 * model.predict_s(work))


def test_between_knots_times_are_linear_and_beyond_the_last_they_go_on() -> None:
    values = [1.0, 2.0, 6.0]
    assert [interpolate([2, 4, 8], values, at) for at in (0, 2, 3, 4, 6, 8, 12)] == [1.0, 1.0, 1.5, 2.0, 4.0, 6.0, 10.0]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3000)), min_size=1, max_size=8),
    st.tuples(st.integers(1, 300), st.integers(0, 3000)),
)
def test_more_work_never_takes_less_time(chunks: list[tuple[int, int]], more: tuple[int, int]) -> None:
    model, work = ProfileModel(TABLE), StepWork.of(chunks, num_sampled=len(chunks))
    assert model.predict_s(work) <= model.predict_s(work.plus(*more, is_sampled=True)) * (1 + 1e-12)


def test_a_mixed_point_is_a_chunk_and_its_riders() -> None:
    point = ProfilePoint(num_sequences=1, num_new_tokens=64, num_context_tokens=100, num_riders=3, seconds=0.1)
    assert point.work == StepWork.of([(64, 100), (1, 100), (1, 100), (1, 100)], num_sampled=4)


def test_a_profile_survives_its_file_and_other_files_are_refused() -> None:
    assert parse_profile(msgspec.json.encode(TABLE), "p.json") == TABLE
    falling = msgspec.structs.replace(TABLE, knot_s=[0.005, 0.004, 0.02])
    for data in (b"{}", b"no json", msgspec.json.encode(falling)):
        with pytest.raises(ConfigError, match=r"p\.json"):
            parse_profile(data, "p.json")
