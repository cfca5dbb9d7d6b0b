"""How little of the space a search simulates."""

from __future__ import annotations

from tests.fakes.planner_cases import cluster, load, problem

from kvist.planner.evaluation import Effort
from kvist.planner.operating_point import TURNOVER, num_places
from kvist.planner.search import FULL, Goal, Rounds, run_here, search
from kvist.planner.search_space import SpaceLimits, candidates

SHORT = Effort(num_lifetimes=0.5, min_requests=20, tolerance=0.5)


def test_policies_are_looked_at_on_the_best_placements_only() -> None:
    the_problem = problem()
    space = candidates(the_problem.model, the_problem.deployment, SpaceLimits(max_devices=2, max_devices_per_unit=2))
    rounds = Rounds(efforts=(SHORT, SHORT), keep=(1, 1), last=SHORT, num_finalists=1)

    found = search(space, the_problem, Goal(), rounds, run_here(the_problem))

    placements = {each.candidate.shapes.__repr__() for each in found.units}
    best = {each.candidate.shapes.__repr__() for each in found.finalists}
    assert len(placements) > 1
    assert len(best) == 1
    assert len(found.units) < len(space) / 2
    assert len(FULL.efforts) == len(FULL.keep)


def test_capacity_is_measured_with_more_requests_than_run_at_once() -> None:
    the_load = load(num_requests=20)
    config = cluster(num_replicas=2, max_num_seqs=16)

    waiting = the_load.at_once(min_requests=TURNOVER * num_places(config, the_load))

    assert num_places(config, the_load) == 32
    assert len(waiting) >= 64
    assert [record.index for record in waiting] == list(range(len(waiting)))
    assert len({part.text_id for record in waiting for part in record.prompt}) == len(waiting)  # type: ignore[union-attr]
