"""Bounds, rounds and the plan that they end in."""

from __future__ import annotations

import dataclasses

import pytest
from tests.fakes.planner_cases import problem

from kvist.config.cluster_toml import cluster_toml
from kvist.config.load_cluster import parse_cluster
from kvist.core.errors import ConfigError
from kvist.planner.candidate import Candidate, Shape
from kvist.planner.evaluation import Effort, bound_of, evaluate, placed
from kvist.planner.plan import make_plan, pareto_front, plan_point
from kvist.planner.search import QUICK, Goal, Rounds, run_here, search

ONE, TWO = Shape(tensor_parallel_size=1), Shape(tensor_parallel_size=2)
EFFORT = Effort(num_lifetimes=1.0, min_requests=40, tolerance=0.2)
SPACE = [
    Candidate(mixed=ONE, num_units=2, policy="chunked_prefill", token_budget=2048),
    Candidate(mixed=TWO, num_units=1, policy="chunked_prefill", token_budget=2048),
    Candidate(prefill=ONE, decode=ONE, policy="prefill_first", token_budget=2048),
]


@pytest.mark.parametrize("candidate", SPACE, ids=lambda candidate: candidate.text)
def test_no_simulation_exceeds_the_bound(candidate: Candidate) -> None:
    the_problem = problem()

    found = evaluate(candidate, the_problem, EFFORT)

    assert 0.0 < found.rate_per_s <= bound_of(candidate, the_problem).max_rate_per_s


def test_an_objective_that_no_step_can_keep_is_told_from_step_times_alone() -> None:
    the_problem = problem(model="llama-3.1-70b", device="A100", slo="tpot=2ms")
    candidate = Candidate(mixed=Shape(tensor_parallel_size=4))

    bound = bound_of(candidate, the_problem)

    assert bound.max_rate_per_s == 0.0
    assert "a step for a single request takes" in bound.why
    with pytest.raises(ConfigError, match="no candidate can keep"):
        search([candidate], the_problem, Goal(), QUICK, run_here(the_problem))


def test_rounds_end_with_the_best_whole_cluster() -> None:
    the_problem = problem()
    rounds = Rounds(efforts=(EFFORT,), keep=(3,), last=EFFORT, num_finalists=3)

    found = search(SPACE, the_problem, Goal(), rounds, run_here(the_problem))

    alone = {each.text: evaluate(each, the_problem, EFFORT).rate_per_s for each in SPACE}
    assert found.finalists[0].rate_per_s >= max(alone.values()) / (1 + EFFORT.tolerance)
    assert [each.rate_per_s for each in found.finalists] == sorted(
        (e.rate_per_s for e in found.finalists), reverse=True
    )
    assert found.num_candidates == 3


def test_a_rate_is_planned_with_the_fewest_devices_that_keep_it() -> None:
    the_problem = problem()
    unit = evaluate(SPACE[0].unit, the_problem, EFFORT)
    rounds = Rounds(efforts=(EFFORT,), keep=(1,), last=EFFORT, num_finalists=1)

    found = search(SPACE[:1], the_problem, Goal(1.5 * unit.rate_per_s), rounds, run_here(the_problem))

    best = found.finalists[0]
    assert best.rate_per_s >= 1.5 * unit.rate_per_s
    assert best.candidate.num_devices in (2, 3)


def test_a_plan_says_how_sure_it_is_and_why() -> None:
    the_problem = problem()
    run_all = run_here(the_problem)
    found = search(SPACE, the_problem, Goal(), QUICK, run_all)

    plan = make_plan(found, the_problem, QUICK, run_all)

    assert plan.error_bar.slow_steps < plan.error_bar.fast_steps
    assert plan.winner is plan.front[0]
    assert set(map(id, plan.front[1:])) <= set(map(id, pareto_front(plan.front)))
    assert len(plan.reasons) >= 2
    assert plan.winner.cost is not None


def test_the_planned_cluster_is_written_as_it_is_read() -> None:
    for candidate in SPACE:
        config, _ = placed(candidate, problem())

        assert parse_cluster(cluster_toml(config), "plan.toml").config == config


def test_a_plan_keeps_its_objective_with_the_whole_load_or_says_that_it_does_not() -> None:
    the_problem = problem(slo="ttft=60ms,tpot=30ms")
    found = evaluate(SPACE[0], the_problem, EFFORT)
    assert found.goodput is not None
    hasty = dataclasses.replace(found, goodput=dataclasses.replace(found.goodput, rate_per_s=5.0 * found.rate_per_s))

    point = plan_point(hasty, the_problem, rate_per_s=None, tolerance=0.3)
    asked = plan_point(found, the_problem, rate_per_s=1e5, tolerance=0.3)

    assert point.keeps_objective
    assert point.point.attainment >= the_problem.deployment.objective.attainment
    assert point.goodput_per_s == point.point.rate_per_s < hasty.rate_per_s
    assert not asked.keeps_objective
    assert asked.goodput_per_s < asked.point.rate_per_s


def test_no_goodput_is_claimed_beyond_the_capacity() -> None:
    the_problem = problem()  # 40 requests are over before any queue has grown
    run_all = run_here(the_problem)

    plan = make_plan(search(SPACE[:1], the_problem, Goal(), QUICK, run_all), the_problem, QUICK, run_all)

    assert plan.winner.goodput_per_s <= plan.winner.point.capacity_per_s
    assert not plan.is_load_long_enough
    assert not plan.winner.point.is_saturated
    assert plan.winner.point.ttft.p99 is not None
