"""Arrival processes have the rate and the burstiness that they state."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, stdev

import pytest

from kvist.workload.arrival_process import Drift, Gamma, OnOff, spread_grid
from kvist.workload.random_stream import RandomStream


def gaps_of(times):
    return [later - earlier for earlier, later in pairwise([0.0, *times])]


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_stated_mean_and_variation(cv):
    gaps = gaps_of(Gamma(0.5, cv).times(RandomStream(7, "gaps"), 4000, 4.0))
    assert fmean(gaps) == pytest.approx(0.5, rel=0.1)
    assert stdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.1)


def test_bursts_leave_the_off_times_empty():
    times = OnOff(1.0, on_s=2.0, off_s=3.0).times(RandomStream(7, "bursts"), 500, 10.0)
    assert all(time_s % 5.0 < 2.0 for time_s in times)
    assert times == sorted(times)


@pytest.mark.parametrize(("first", "last"), [(0.5, 1.5), (1.5, 0.5), (1.0, 1.0)])
def test_a_drift_starts_and_ends_at_its_rates(first, last):
    times = Drift(first, last).times(RandomStream(7, "drift"), 4000, 10.0)
    assert times == sorted(times)
    duration_s = 4000 / (10.0 * (first + last) / 2)
    early = sum(time_s < duration_s / 10 for time_s in times) / (duration_s / 10)
    assert early == pytest.approx(10.0 * (first + (last - first) / 20), rel=0.15)


def test_a_coarse_grid_is_spread_up_to_the_next_stamp():
    assert spread_grid([0.0, 0.0, 3.0, 3.0, 3.0]) == [0.0, 1.5, 3.0, 4.0, 5.0]
    assert spread_grid([1.0]) == [1.0]
    assert spread_grid([]) == []
