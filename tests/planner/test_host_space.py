"""Candidates on measured hosts, and the clusters that they become."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from tests.fakes.planner_cases import host_problem, measured_host

from kvist.config.cluster_toml import cluster_toml
from kvist.config.load_cluster import parse_cluster
from kvist.core.errors import ConfigError
from kvist.costmodel.step_work import StepWork
from kvist.planner.evaluation import placed
from kvist.planner.host_space import HostLimits, host_candidates
from kvist.planner.plan import make_plan
from kvist.planner.search import QUICK, Goal, run_here, search

ONE = HostLimits(max_hosts=1, max_hosts_per_unit=1)


def test_candidates_on_one_host_differ_in_policy_budget_batch_and_prefix_caching() -> None:
    space = host_candidates({"profile.json": measured_host()}, ONE, longest_request=500)

    assert len(space) >= 80
    assert len({each.text for each in space}) == len(space)
    assert {each.policy for each in space} >= {"chunked_prefill", "split_fuse", "prefill_first", "slo_budget"}
    assert {each.enable_prefix_caching for each in space} == {True, False}
    assert {each.kv_cache_tokens for each in space} == {65_536}
    assert all(each.num_devices == 1 and not each.is_disaggregated for each in space)


def test_no_candidate_takes_steps_that_were_not_measured() -> None:
    host = measured_host()
    small = dataclasses.replace(host, table=msgspec.structs.replace(host.table, knots=[1, 256]))

    space = host_candidates({"profile.json": small}, ONE, longest_request=500)

    assert max(each.token_budget for each in space) == 256
    assert max(each.max_num_seqs for each in space) <= host.table.max_sequences


def test_pools_that_a_host_has_no_room_for_are_left_out() -> None:
    limits = dataclasses.replace(ONE, pool_tokens=(100, 4_100, 10_000_000))

    space = host_candidates({"profile.json": measured_host()}, limits, longest_request=500)

    assert {each.kv_cache_tokens for each in space} == {4_096}  # whole blocks
    with pytest.raises(ConfigError, match="no KV pool among those given holds a request of 5000 tokens"):
        host_candidates({"profile.json": measured_host()}, limits, longest_request=5_000)


def test_several_hosts_may_split_prefill_and_decode_in_any_ratio() -> None:
    limits = HostLimits(max_hosts=3, max_hosts_per_unit=3)

    space = host_candidates({"profile.json": measured_host()}, limits, longest_request=500)

    split = {(each.prefill.count, each.decode.count) for each in space if each.prefill and each.decode}
    assert split == {(1, 1), (1, 2), (2, 1)}
    assert {each.num_units for each in space if each.mixed} == {3}


def test_a_profile_of_another_number_format_is_a_choice() -> None:
    hosts = {name: measured_host(name) for name in ("q8.json", "q4.json")}

    space = host_candidates(hosts, ONE, longest_request=500)

    assert {each.profile for each in space} == {"q8.json", "q4.json"}
    assert len({each.text for each in space}) == len(space)


def test_the_cluster_of_a_candidate_has_the_engines_limits_and_the_profiles_times() -> None:
    the_problem = host_problem()
    candidate = host_candidates(the_problem.hosts, ONE, longest_request=500)[0]

    config, step_times = placed(candidate, the_problem)

    group = config.groups[0]
    assert (group.device, group.kv_cache_tokens, group.max_model_len) == (None, 65_536, 8_192)
    assert config.cache.kv_bytes_per_token == 46_080
    work = StepWork.of([(1, 100)] * 4, num_sampled=4)
    assert step_times[group.name].predict_s(work) > 0.008
    text = cluster_toml(config, profile=candidate.profile)
    file = parse_cluster(text, "plan.toml")
    assert file.config == config
    assert file.step_times == {"": {"profile": "profile.json"}}


def test_a_plan_of_hosts_states_the_profiles_error_and_drift_and_no_dollars_without_a_price() -> None:
    the_problem = host_problem()
    run_all = run_here(the_problem)
    limits = dataclasses.replace(ONE, is_quick=True)
    space = host_candidates(the_problem.hosts, limits, longest_request=500)

    plan = make_plan(search(space, the_problem, Goal(), QUICK, run_all), the_problem, QUICK, run_all)

    assert plan.error_bar.decode_bar == 0.1  # half the drift, which is more than the fit's error
    assert plan.error_bar.slow_steps < plan.error_bar.fast_steps
    assert "profile" in plan.error_bar.reason
    assert plan.winner.cost is None
