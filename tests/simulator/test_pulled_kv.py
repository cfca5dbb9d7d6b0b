"""Prompts that wait, held where they were computed, until the replica that decodes has memory to pull them into."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.cluster_world import cluster, group, split_groups
from tests.simulator.test_decode_migration import assert_each_token_once, load, run

from kvist.config.cluster_config import ClusterConfig, FailureConfig, ReplicaGroupConfig, RouterConfig
from kvist.simulator.simulation_result import SimulationResult

CROWDED = 600  # tokens of KV: two of the load's requests


def pulling(*groups: ReplicaGroupConfig, policy: str) -> ClusterConfig:
    config = cluster(*groups, router=RouterConfig(policy=policy, ttft_slo_s=0.1, tpot_slo_s=0.5))
    return replace(config, links=replace(config.links, streams_kv=False, inter_node_gb_per_s=20.0))


def num_split(result: SimulationResult) -> int:
    return sum(request.prefill_replica != request.decode_replica for request in result.requests)


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin", "power_of_two"])
def test_mixed_replicas_full_of_prompts_for_each_other_go_on(policy: str) -> None:
    config = pulling(group(count=2, kv_cache_tokens=CROWDED), policy=policy)

    result = run(config, load(24, gap_s=0.01))

    assert num_split(result) > 0
    assert_each_token_once(result)


def test_steps_in_bulk_change_nothing_where_waits_end() -> None:
    config = pulling(group(count=2, kv_cache_tokens=CROWDED), policy="round_robin")

    one, other = (run(config, load(24, gap_s=0.01), has_bulk_steps=bulk) for bulk in (True, False))

    assert one.digest() == other.digest()


def test_a_run_that_nothing_ends_stops_when_the_last_thing_happened() -> None:
    config = pulling(*split_groups(1, 1), policy="least_loaded")
    config = replace(config, failures=tuple(FailureConfig(replica=number, at_s=1.0) for number in (0, 1)))
    config = replace(config, router=replace(config.router, max_queue_s=0.01))

    result = run(config, load(40, gap_s=0.001))

    assert any(request.outcome == "unfinished" for request in result.requests)
    assert result.end_ns < 2 * 10**9  # what was to end a wait is not what happened last


@given(
    policy=st.sampled_from(["least_loaded", "kv_centric", "round_robin", "random", "power_of_two"]),
    count=st.integers(2, 3),
    kv_cache_tokens=st.sampled_from([450, CROWDED, 900]),
    gap_s=st.sampled_from([0.0, 0.01, 0.1]),
    num_output_tokens=st.sampled_from([2, 120]),
    max_num_seqs=st.sampled_from([1, 2, 16]),
    num_stages=st.sampled_from([1, 2]),
    failure=st.none() | st.tuples(st.integers(0, 1), st.floats(0.05, 15.0)),
)
@settings(max_examples=25, deadline=None)
def test_every_token_comes_once_however_little_memory_there_is(
    policy: str,
    count: int,
    kv_cache_tokens: int,
    gap_s: float,
    num_output_tokens: int,
    max_num_seqs: int,
    num_stages: int,
    failure: tuple[int, float] | None,
) -> None:
    sizes: dict[str, Any] = {
        "kv_cache_tokens": kv_cache_tokens,
        "max_num_seqs": max_num_seqs,
        "pipeline_parallel_size": num_stages,
    }
    config = pulling(group(count=count, **sizes), policy=policy)
    if failure is not None:
        config = replace(config, failures=(FailureConfig(replica=failure[0], at_s=failure[1], down_s=1.0),))

    assert_each_token_once(run(config, load(10, num_output_tokens=num_output_tokens, gap_s=gap_s)))
