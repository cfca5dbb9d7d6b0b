"""What the simulated Mooncake is judged by."""

from __future__ import annotations

from array import array

import pytest

from kvist.repro.mooncake import TailGapObjective, hit_share, queueing_s, tail_gap_s
from kvist.repro.mooncake_cluster import STEP_TIME, mooncake_cluster, vllm_cluster
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.simulation_result import SimulatedRequest
from kvist.workload.adapting import take_first
from kvist.workload.recorded_load import read_shipped_trace


def request(*gaps_s: float) -> SimulatedRequest:
    times, now = array("q", [1_000_000_000]), 1_000_000_000
    for gap_s in gaps_s:
        now += round(gap_s * 1e9)
        times.append(now)
    return SimulatedRequest(
        index=0, arrival_ns=0, num_prompt_tokens=1, max_tokens=9, outcome="finished", token_times_ns=times
    )


def test_time_between_tokens_is_the_mean_of_the_longest_tenth() -> None:
    slow = request(*[0.01] * 18, 0.5, 0.3)

    assert tail_gap_s(slow) == pytest.approx(0.4)
    assert tail_gap_s(request()) == 0.0
    assert TailGapObjective(ttft_s=30.0, tbt_s=0.4001).is_good(slow)
    assert not TailGapObjective(ttft_s=30.0, tbt_s=0.39).is_good(slow)
    assert not TailGapObjective(ttft_s=0.5, tbt_s=1.0).is_good(slow)


def test_only_the_cluster_with_a_prefix_cache_finds_prompts_in_it() -> None:
    records = take_first(read_shipped_trace("mooncake_conversation"), 40)

    with_cache = simulate(mooncake_cluster(1, 1, "kv_centric"), records, STEP_TIME)
    without = simulate(vllm_cluster(2), records, STEP_TIME)

    assert hit_share(with_cache) > 0.0
    assert hit_share(without) == 0.0
    assert queueing_s(with_cache) >= 0.0
