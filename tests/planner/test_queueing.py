"""Queueing formulas against the simulator, and the fitted latencies of DistServe."""

from __future__ import annotations

import math

import pytest

from kvist.config.cluster_config import ReplicaGroupConfig
from kvist.core.errors import ConfigError
from kvist.costmodel.step_work import StepWork
from kvist.planner.queueing import ttft_one_device_s, ttft_two_ranks_s, ttft_two_stages_s
from kvist.repro.distserve_latency import SWIFT_TRANSFORMER, FittedLatencies
from kvist.repro.distserve_queueing import CASES, DURATION_S, QueueingCase, simulated_ttft_s


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_simulated_queues_are_as_long_as_theory_says(case: QueueingCase) -> None:
    rate = 5.0

    simulated = simulated_ttft_s(case, rate, 1500)

    assert simulated == pytest.approx(case.formula(rate, DURATION_S), rel=0.08)


def test_tensor_parallel_wins_at_low_rates_and_pipelines_at_high_ones() -> None:
    assert ttft_two_ranks_s(1.0, 0.1, 1.5) < ttft_two_stages_s(1.0, 0.1)
    assert ttft_two_ranks_s(14.0, 0.1, 1.5) > ttft_two_stages_s(14.0, 0.1)
    assert math.isinf(ttft_one_device_s(10.0, 0.1))


def test_fitted_latencies_are_those_of_the_formula() -> None:
    model = FittedLatencies(SWIFT_TRANSFORMER)(ReplicaGroupConfig(model="opt-13b"))

    prefill_s = model.predict_s(StepWork.of([(512, 0)], num_sampled=1))
    decode_s = model.predict_s(StepWork.of([(1, 499)] * 10, num_sampled=10))

    assert prefill_s * 1e3 == pytest.approx(72.15, rel=2e-3)  # published for 512 tokens
    assert decode_s * 1e3 == pytest.approx(19.93 + 6.269e-4 * 5000 + 0.03851 * 10)


def test_a_placement_without_fitted_latencies_is_refused() -> None:
    with pytest.raises(ConfigError, match="no latencies of opt-13b on 8 devices"):
        FittedLatencies(SWIFT_TRANSFORMER)(ReplicaGroupConfig(model="opt-13b", tensor_parallel_size=8))
