"""Whole clusters under virtual time: everybody is served, equal runs are equal, bulk steps change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fakes.cluster_world import STEP_TIME, chats, cluster, group, split_groups

from kvist.config.cluster_config import ROUTERS, ClusterConfig, FailureConfig, RouterConfig
from kvist.config.scheduler_config import POLICIES
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.simulation_result import SimulationResult


def assert_all_served(result: SimulationResult) -> None:
    for request in result.requests:
        assert request.outcome == "finished", (request.index, request.why)
        times = list(request.token_times_ns)
        assert len(times) == request.max_tokens
        assert times == sorted(times)
        assert request.arrival_ns < times[0]


CLUSTERS: dict[str, ClusterConfig] = {
    "mixed": cluster(group(count=3)),
    "split": cluster(*split_groups()),
    "split, pulled": cluster(*split_groups(), links=replace(cluster().links, streams_kv=False)),
    "split, fifo links": cluster(*split_groups(), links=replace(cluster().links, sharing="fifo", latency_s=1e-4)),
    "split and mixed": cluster(*split_groups(1, 1), group(count=1)),
    "pipelines": cluster(
        group("prefill", 1, decode_weight=0.0, pipeline_parallel_size=2), group("mixed", 1, pipeline_parallel_size=3)
    ),
    "tiers": cluster(group(count=2, kv_cache_tokens=600, host_cache_tokens=800, disk_cache_tokens=4_000)),
    "shared pool": cluster(
        group(count=2, kv_cache_tokens=600), cache=replace(cluster().cache, shared_pool_tokens=9_000)
    ),
    "small pools": cluster(*split_groups(1, 2, kv_cache_tokens=720)),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_everybody_is_served_and_steps_in_bulk_change_nothing(name: str) -> None:
    fast = simulate(CLUSTERS[name], chats(), STEP_TIME)
    slow = simulate(CLUSTERS[name], chats(), STEP_TIME, has_bulk_steps=False)
    assert_all_served(fast)
    assert fast.digest() == slow.digest()
    assert [replica.num_steps for replica in fast.replicas] == [replica.num_steps for replica in slow.replicas]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_a_split_cluster(policy: str) -> None:
    config = cluster(*split_groups(1, 1, policy=policy))
    fast = simulate(config, chats(6), STEP_TIME)
    assert_all_served(fast)
    assert fast.digest() == simulate(config, chats(6), STEP_TIME, has_bulk_steps=False).digest()


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_serves_and_repeats_itself(router: str) -> None:
    config = cluster(*split_groups(), router=RouterConfig(policy=router, seed=3))
    first = simulate(config, chats(), STEP_TIME)
    assert_all_served(first)
    assert first.digest() == simulate(config, chats(), STEP_TIME).digest()


def test_requests_of_a_lost_replica_go_on_elsewhere_without_a_token_twice() -> None:
    config = cluster(group(count=2), failures=(FailureConfig(replica=0, at_s=0.3, down_s=0.5),))
    result = simulate(config, chats(), STEP_TIME)
    assert_all_served(result)
    assert any(request.num_restarts for request in result.requests)
    assert any(request.decode_replica == 0 for request in result.requests if request.arrival_ns > 8e8)


@pytest.mark.parametrize("replica", [0, 1, 2, 3])
@pytest.mark.parametrize("at_s", [0.12, 0.31, 0.55])
def test_a_split_cluster_survives_the_loss_of_any_replica(replica: int, at_s: float) -> None:
    config = cluster(*split_groups(), failures=(FailureConfig(replica=replica, at_s=at_s),))
    assert_all_served(simulate(config, chats(), STEP_TIME))


def test_a_replica_that_starts_late_gets_nothing_before() -> None:
    config = cluster(group("early", 1), group("late", 1, start_delay_s=0.4))
    result = simulate(config, chats(), STEP_TIME)
    assert_all_served(result)
    assert all(request.prefill_replica == 0 for request in result.requests if request.arrival_ns < 0.4e9)
    assert any(request.prefill_replica == 1 for request in result.requests)


def test_later_turns_find_their_history_in_the_cache() -> None:
    result = simulate(cluster(group(count=1)), chats(4), STEP_TIME)
    for request in result.requests:
        if request.index % 3:
            assert request.num_cached_tokens >= 64


def test_streaming_hides_transfers_behind_the_prefill() -> None:
    streamed = simulate(CLUSTERS["split"], chats(), STEP_TIME)
    pulled = simulate(CLUSTERS["split, pulled"], chats(), STEP_TIME)
    assert sum(streamed.link_bytes.values()) > 0

    def second_token_ns(result: SimulationResult) -> int:
        return sum(r.token_times_ns[1] - r.token_times_ns[0] for r in result.requests if r.max_tokens > 1)

    assert second_token_ns(streamed) < second_token_ns(pulled)


def test_requests_that_fit_nowhere_fail_and_the_rest_is_served() -> None:
    config = cluster(group(count=1, kv_cache_tokens=160))
    result = simulate(config, chats(3, 1), STEP_TIME)
    assert {request.outcome for request in result.requests} <= {"finished", "failed"}
    assert all(request.why for request in result.requests if request.outcome == "failed")
