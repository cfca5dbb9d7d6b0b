"""DistServe again: placements, and what limits them."""

from __future__ import annotations

import pytest

from kvist.planner.candidate import Candidate, Shape
from kvist.planner.evaluation import Effort, placed
from kvist.planner.service_level_objective import parse_objective
from kvist.repro.distserve_latency import SWIFT_TRANSFORMER, FittedLatencies
from kvist.repro.distserve_placement import best_placement, pairs, problem_of, shapes, sharegpt
from kvist.repro.distserve_queueing import decode_limit_per_s

OBJECTIVE = parse_objective("ttft=200ms,tpot=100ms,attainment=0.9")


@pytest.mark.slow
def test_the_published_placement_of_opt_13b_beats_a_pair_of_four_devices() -> None:
    problem = problem_of("opt-13b", sharegpt(is_quick=True), OBJECTIVE, FittedLatencies(SWIFT_TRANSFORMER))
    space = [each for each in pairs(shapes((1, 2), (1,)), 4) if each.prefill == Shape(tensor_parallel_size=2)]

    found = best_placement(space, problem, Effort(num_lifetimes=2.0, min_requests=600, tolerance=0.08))

    assert len(space) == 2
    assert found.best.candidate.decode == Shape(tensor_parallel_size=1)


def test_a_full_pool_limits_decoding_as_the_formula_says() -> None:
    load = sharegpt(is_quick=True)
    problem = problem_of("opt-13b", load, OBJECTIVE, FittedLatencies(SWIFT_TRANSFORMER))
    one = Shape(tensor_parallel_size=1)
    config, step_times = placed(Candidate(prefill=one, decode=one, number_format="fp16"), problem)

    limit = decode_limit_per_s(step_times["decode"], config.groups[1].kv_cache_tokens or 0, load)

    assert limit == pytest.approx(5.2, rel=0.1)
    assert decode_limit_per_s(step_times["decode"], 10**6, load) > 1.2 * limit
