"""Decodes that move between simulated replicas: every token once, every block given back, whatever happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.cluster_world import STEP_TIME, chats, cluster, group, split_groups

from kvist.config.cluster_config import ClusterConfig, FailureConfig, ReplicaGroupConfig, RouterConfig
from kvist.simulator.cluster_simulation import ClusterSimulation, simulate
from kvist.simulator.simulation_result import SimulationResult
from kvist.workload.trace_record import TextPart, TraceRecord

MOVING = RouterConfig(policy="least_loaded", ttft_slo_s=0.1, tpot_slo_s=0.5, migration_interval_s=0.05)


def load(count: int, *, num_tokens: int = 200, num_output_tokens: int = 120, gap_s: float = 0.02) -> list[TraceRecord]:
    return [
        TraceRecord(
            index=index,
            arrival_s=index * gap_s,
            prompt=(TextPart(f"text {index}", 0, num_tokens + 13 * (index % 7)),),
            num_output_tokens=num_output_tokens + 7 * (index % 5),
        )
        for index in range(count)
    ]


def unequal(**fields: Any) -> tuple[ReplicaGroupConfig, ...]:
    """One replica prefills, one gets most of the outputs, one only a few: the second grows short of memory."""
    return (*split_groups(1, 1, **fields), group("spare", 1, prefill_weight=0.0, decode_weight=0.2, **fields))


def with_fast_links(config: ClusterConfig) -> ClusterConfig:
    return replace(config, links=replace(config.links, inter_node_gb_per_s=20.0))


def num_moves(result: SimulationResult) -> int:
    return sum(request.num_migrations for request in result.requests)


def assert_each_token_once(result: SimulationResult) -> None:
    for request in result.requests:
        assert request.outcome == "finished"
        times = list(request.token_times_ns)
        assert len(times) == request.max_tokens
        assert times == sorted(set(times))


def run(config: ClusterConfig, records: list[TraceRecord], *, has_bulk_steps: bool = True) -> SimulationResult:
    """And see that no replica holds anything at the end."""
    simulation = ClusterSimulation(config, records, STEP_TIME, has_bulk_steps=has_bulk_steps)
    result = simulation.run()
    for replica in simulation._replicas:
        if replica.is_live:
            replica.turn(result.end_ns)  # what was released as the last thing
            status = replica.scheduler.status()
            assert (status.num_running, status.num_waiting) == (0, 0)
            assert not replica.scheduler.kv_handover.has_leases
            assert status.num_free_blocks + status.num_evictable_blocks == status.num_total_blocks
            replica.scheduler.check_invariants()
    return result


def test_decodes_leave_a_replica_that_is_short_of_memory() -> None:
    records = load(16, num_output_tokens=300)
    staying = run(cluster(*unequal(), router=replace(MOVING, migration_interval_s=None)), records)

    moving = run(cluster(*unequal(), router=MOVING), records)

    assert num_moves(staying) == 0
    assert num_moves(moving) > 0
    assert_each_token_once(moving)
    assert sum(r.num_preemptions for r in moving.requests) < sum(r.num_preemptions for r in staying.requests)
    assert moving.end_ns < 0.8 * staying.end_ns


def test_decodes_leave_a_replica_whose_role_changes() -> None:
    router = replace(MOVING, role_interval_s=0.2)
    records = load(60, num_tokens=1000, num_output_tokens=150, gap_s=0.05)
    config = cluster(*split_groups(1, 3, kv_cache_tokens=40_000), router=router)

    result = run(with_fast_links(config), records)

    assert result.role_changes
    assert num_moves(result) > 0
    assert_each_token_once(result)


@pytest.mark.parametrize("streams_kv", [True, False])
def test_steps_in_bulk_change_nothing(*, streams_kv: bool) -> None:
    config = cluster(*unequal(), router=MOVING)
    config = replace(config, links=replace(config.links, streams_kv=streams_kv))
    records = load(16, num_output_tokens=300)

    one, other = (run(config, records, has_bulk_steps=bulk) for bulk in (True, False))

    assert num_moves(one) > 0
    assert one.digest() == other.digest()


def test_pipelines_hand_over_what_is_computed() -> None:
    config = with_fast_links(cluster(*unequal(pipeline_parallel_size=2), router=MOVING))

    result = run(config, load(16, num_output_tokens=300))

    assert num_moves(result) > 0
    assert_each_token_once(result)


@given(
    is_unequal=st.booleans(),
    kv_cache_tokens=st.sampled_from([1200, 2400, 4096]),
    interval_s=st.sampled_from([0.01, 0.05, 0.3]),
    role_interval_s=st.sampled_from([None, 0.2]),
    failure=st.none() | st.tuples(st.integers(0, 2), st.floats(0.05, 5.0)),
    num_output_tokens=st.sampled_from([40, 300]),
    gap_s=st.sampled_from([0.0, 0.01, 0.05]),
    streams_kv=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_every_token_comes_once_whatever_moves_and_fails(
    kv_cache_tokens: int,
    interval_s: float,
    role_interval_s: float | None,
    failure: tuple[int, float] | None,
    num_output_tokens: int,
    gap_s: float,
    *,
    is_unequal: bool,
    streams_kv: bool,
) -> None:
    router = replace(MOVING, migration_interval_s=interval_s, role_interval_s=role_interval_s)
    sizes = {"kv_cache_tokens": kv_cache_tokens}
    config = cluster(*(unequal(**sizes) if is_unequal else split_groups(1, 2, **sizes)), router=router)
    config = replace(config, links=replace(config.links, streams_kv=streams_kv))
    if failure is not None:
        config = replace(config, failures=(FailureConfig(replica=failure[0], at_s=failure[1], down_s=1.0),))

    assert_each_token_once(run(config, load(12, num_output_tokens=num_output_tokens, gap_s=gap_s)))


def test_conversations_move_too() -> None:
    config = cluster(*split_groups(1, 2, kv_cache_tokens=900), router=MOVING)

    assert_each_token_once(simulate(config, chats(), STEP_TIME))
