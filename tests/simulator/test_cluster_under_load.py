"""Clusters with more to do than they can: roles follow the load, refusals spare work, tenants share, none is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fakes.cluster_world import STEP_TIME, chats, cluster, group, split_groups

from kvist.config.cluster_config import ClusterConfig, FailureConfig, RouterConfig
from kvist.simulator.cluster_simulation import ClusterSimulation, simulate
from kvist.simulator.simulation_result import SimulationResult
from kvist.workload.trace_record import TextPart, TraceRecord


def prompts(count: int, *, num_tokens: int, num_output_tokens: int, gap_s: float) -> list[TraceRecord]:
    """Requests that share nothing, three of four of one session."""
    return [
        TraceRecord(
            index=index,
            arrival_s=index * gap_s,
            prompt=(TextPart(f"text {index}", 0, num_tokens),),
            num_output_tokens=num_output_tokens,
            session_id="big" if index % 4 else "small",
        )
        for index in range(count)
    ]


def count(result: SimulationResult, outcome: str) -> int:
    return sum(request.outcome == outcome for request in result.requests)


@pytest.mark.parametrize(
    "config",
    [
        cluster(group(count=2)),
        cluster(*split_groups(1, 2, kv_cache_tokens=720)),
        cluster(*split_groups(), links=replace(cluster().links, streams_kv=False)),
        cluster(group(count=2, kv_cache_tokens=600, host_cache_tokens=800)),
    ],
)
def test_no_block_is_held_when_all_is_done(config: ClusterConfig) -> None:
    simulation = ClusterSimulation(config, chats(), STEP_TIME, has_bulk_steps=True)
    simulation.run()
    for replica in simulation._replicas:
        status = replica.scheduler.status()
        assert (status.num_running, status.num_waiting) == (0, 0)
        assert status.num_free_blocks + status.num_evictable_blocks == status.num_total_blocks
        replica.scheduler.check_invariants()


def test_a_replica_takes_prompts_over_when_prefill_is_short() -> None:
    router = RouterConfig(policy="least_loaded", ttft_slo_s=0.1, tpot_slo_s=0.5, role_interval_s=0.2)
    load = prompts(60, num_tokens=1_000, num_output_tokens=4, gap_s=0.05)
    fixed = simulate(cluster(*split_groups(1, 3), router=replace(router, role_interval_s=None)), load, STEP_TIME)
    elastic = simulate(cluster(*split_groups(1, 3), router=router), load, STEP_TIME)
    assert elastic.role_changes
    assert count(elastic, "finished") == len(load)
    assert elastic.end_ns < fixed.end_ns
    assert {request.prefill_replica for request in elastic.requests} > {0}


def test_early_refusal_keeps_the_targets_of_those_that_are_served() -> None:
    load = prompts(200, num_tokens=500, num_output_tokens=8, gap_s=0.02)
    router = RouterConfig(policy="least_loaded", ttft_slo_s=0.5, rejection="none")
    everybody = simulate(cluster(group(count=2), router=router), load, STEP_TIME)
    chosen = simulate(cluster(group(count=2), router=replace(router, rejection="early")), load, STEP_TIME)
    assert count(everybody, "rejected") == 0
    assert 0 < count(chosen, "rejected") < len(load)

    def num_good(result: SimulationResult) -> int:
        return sum(request.ttft_ns is not None and request.ttft_ns <= 0.5e9 for request in result.requests)

    assert num_good(chosen) > num_good(everybody)


@pytest.mark.parametrize("rejection", ["at_decode", "early", "predicted"])
def test_every_way_of_refusing_ends_every_request(rejection: str) -> None:
    load = prompts(200, num_tokens=300, num_output_tokens=30, gap_s=0.015)
    router = RouterConfig(policy="kv_centric", ttft_slo_s=0.6, tpot_slo_s=0.0125, rejection=rejection)
    result = simulate(cluster(*split_groups(2, 1), router=router), load, STEP_TIME)
    assert count(result, "finished") + count(result, "rejected") == len(load)
    assert count(result, "rejected") > 0


def test_a_small_tenant_is_not_drowned_by_a_big_one_when_requests_are_held_back() -> None:
    load = prompts(80, num_tokens=500, num_output_tokens=4, gap_s=0.002)
    router = RouterConfig(policy="least_loaded", max_queue_s=0.05)

    def mean_wait_s(config: RouterConfig, tenant: str) -> float:
        result = simulate(cluster(group(count=1), router=config), load, STEP_TIME)
        assert count(result, "finished") == len(load)
        waits = [r.ttft_ns / 1e9 for r in result.requests if r.session_id == tenant and r.ttft_ns is not None]
        return sum(waits) / len(waits)

    assert mean_wait_s(router, "small") < mean_wait_s(router, "big")
    assert mean_wait_s(router, "small") < mean_wait_s(replace(router, max_queue_s=None), "small")


def test_a_hot_prefix_spreads_over_the_cluster() -> None:
    shared = TextPart("document", 0, 900)
    load = [
        TraceRecord(
            index=index,
            arrival_s=index * 0.004,
            prompt=(shared, TextPart(f"question {index}", 0, 40)),
            num_output_tokens=10,
        )
        for index in range(60)
    ]
    result = simulate(cluster(group(count=4)), load, STEP_TIME)
    assert {request.prefill_replica for request in result.requests} == {0, 1, 2, 3}
    assert sum(request.num_cached_tokens >= 896 for request in result.requests) >= 50


@pytest.mark.parametrize("looks", [{"role_interval_s": 0.5}, {"migration_interval_s": 0.5}, {}])
def test_a_run_ends_although_requests_wait_for_a_replica_that_is_gone(looks: dict[str, float]) -> None:
    router = RouterConfig(policy="least_loaded", max_queue_s=0.01, **looks)
    config = cluster(group(count=1), router=router, failures=(FailureConfig(replica=0, at_s=0.05),))

    result = simulate(config, prompts(40, num_tokens=500, num_output_tokens=4, gap_s=0.001), STEP_TIME)

    assert count(result, "unfinished") > 0
    assert result.end_ns < 10**9
