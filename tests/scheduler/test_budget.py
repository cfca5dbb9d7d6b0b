"""The token budget that measured step times suggest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.scheduler.budget import choose_token_budget


def test_the_budget_is_the_largest_multiple_of_16_within_the_target() -> None:
    assert choose_token_budget([(16, 0.01), (128, 0.05), (256, 0.1), (512, 0.2)]) == 256
    assert choose_token_budget([(16, 0.01), (128, 0.05), (256, 0.15)]) == 192


def test_a_slow_machine_gets_the_least_budget() -> None:
    assert choose_token_budget([(16, 3.0), (32, 5.0)]) == 16


def test_nothing_is_promised_beyond_the_largest_measured_step() -> None:
    assert choose_token_budget([(16, 0.001), (2048, 0.01)]) == 2048


def test_a_step_that_was_slow_by_chance_does_not_lower_the_budget() -> None:
    assert choose_token_budget([(16, 0.01), (32, 0.9), (64, 0.05), (128, 0.3)]) >= 64


def test_no_points_is_an_error() -> None:
    with pytest.raises(ValueError, match="no measured steps"):
        choose_token_budget([])


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0.0, 10.0)), min_size=1))
def test_the_budget_is_always_a_positive_multiple_of_16(points: list[tuple[int, float]]) -> None:
    budget = choose_token_budget(points)
    assert budget >= 16
    assert budget % 16 == 0
