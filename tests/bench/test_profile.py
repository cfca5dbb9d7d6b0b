"""Known times are found again, and a real executor's profile is a profile."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kvist.bench.host_time import HostTime
from kvist.bench.nonnegative import nonnegative_least_squares
from kvist.bench.profile import drift_of, fit_table
from kvist.costmodel.profile_table import ProfileModel, ProfilePoint
from kvist.costmodel.step_work import StepWork

HOST = HostTime(1e-4, 1e-5, 1e-6)


def true_s(work: StepWork) -> float:
    tokens_s = 0.004 + 3e-4 * max(0, work.num_tokens - 4)
    return tokens_s + 2e-5 * work.num_sampled + 1e-6 * work.decode_context_tokens + 3e-7 * work.prefill_pairs


def points() -> list[ProfilePoint]:
    shapes = [(batch, 1, context, 0) for batch, context in product((1, 4, 8, 16), (64, 512, 2048))]
    shapes += [(1, chunk, context, 0) for chunk, context in product((16, 64, 256), (0, 512))]
    shapes += [(1, 64, 256, 4)]
    blank = [
        ProfilePoint(num_sequences=n, num_new_tokens=new, num_context_tokens=context, num_riders=riders, seconds=0.0)
        for n, new, context, riders in shapes
    ]
    return [
        ProfilePoint(
            num_sequences=p.num_sequences,
            num_new_tokens=p.num_new_tokens,
            num_context_tokens=p.num_context_tokens,
            num_riders=p.num_riders,
            seconds=true_s(p.work),
        )
        for p in blank
    ]


def test_a_known_machine_is_found_again() -> None:
    table = fit_table(points(), HOST, drift=0.01, name="known", machine={})
    assert table.error < 0.005
    model = ProfileModel(table)
    for work in (
        StepWork.of([(1, 900)] * 6, num_sampled=6),
        StepWork.of([(128, 300), (1, 40), (1, 4000)], num_sampled=3),
    ):
        assert model.executor_s(work) == pytest.approx(true_s(work), rel=0.01)
        assert model.predict_s(work) > model.executor_s(work)


def test_noise_makes_no_time_negative_or_falling() -> None:
    noise = np.random.default_rng(7)
    noisy = [
        ProfilePoint(
            num_sequences=p.num_sequences,
            num_new_tokens=p.num_new_tokens,
            num_context_tokens=p.num_context_tokens,
            num_riders=p.num_riders,
            seconds=p.seconds * (1.0 + 0.3 * float(noise.random())),
        )
        for p in points()
    ]
    table = fit_table(noisy, HOST, drift=0.0, name="noisy", machine={})
    assert table.knot_s == sorted(table.knot_s)
    assert table.knot_s[0] > 0.0
    assert min(table.sampled_s, table.decode_key_s, table.prefill_key_s, table.prefill_pair_s) >= 0.0
    assert table.error < 0.35


def test_least_squares_without_negatives_agrees_with_all_subsets() -> None:
    noise = np.random.default_rng(3)
    for _ in range(20):
        columns, target = noise.standard_normal((12, 5)), noise.standard_normal(12)
        found = nonnegative_least_squares(columns, target)
        assert (found >= 0.0).all()
        best = min(_error_of_subset(columns, target, subset) for subset in product((False, True), repeat=5))
        assert np.sum((columns @ found - target) ** 2) == pytest.approx(best, rel=1e-6)


def _error_of_subset(columns: np.ndarray, target: np.ndarray, subset: tuple[bool, ...]) -> float:  # type: ignore[type-arg]
    chosen = columns[:, list(subset)]
    if not any(subset):
        return float(np.sum(target**2))
    x = np.linalg.lstsq(chosen, target, rcond=None)[0]
    return float(np.sum((chosen @ x - target) ** 2)) if (x >= 0).all() else float("inf")


def test_drift_is_of_whole_rounds_not_of_one_step() -> None:
    rounds = [[1.0, 2.0], [1.1, 2.2], [1.0, 2.0]]

    assert drift_of(rounds) == pytest.approx(0.1)
