"""Histograms and what can be read off them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvist.metrics.histogram import Histogram

VALUES = st.lists(st.floats(0.0, 9.9), min_size=1, max_size=50)


def test_nothing_has_no_percentile() -> None:
    assert Histogram([1.0]).percentile(50) is None


def test_a_window_holds_what_came_after_the_copy() -> None:
    histogram = Histogram([1.0, 2.0])
    histogram.observe(0.5, 3)
    before = histogram.copy()
    histogram.observe(1.5, 2)
    window = histogram.since(before)
    assert (window.counts, window.total) == ([0, 2, 0], 3.0)
    assert (before.counts, before.total) == ([3, 0, 0], 1.5)


@given(values=VALUES, percent=st.floats(1.0, 100.0))
def test_an_estimated_percentile_lies_within_a_bucket_of_a_value_of_that_rank(
    values: list[float], percent: float
) -> None:
    histogram = Histogram(range(1, 11))
    for value in values:
        histogram.observe(value)
    rank = int(np.ceil(percent / 100 * len(values)))
    assert abs(histogram.percentile(percent) - sorted(values)[max(rank, 1) - 1]) <= 1.0


def test_a_bound_belongs_to_its_own_bucket() -> None:
    histogram = Histogram([1.0, 2.0])
    for value in (1.0, 1.5, 2.0, 3.0, -1.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1", 2.0), ("2", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 7.5
