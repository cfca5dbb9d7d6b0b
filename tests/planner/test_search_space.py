"""Which candidates there are."""

from __future__ import annotations

import dataclasses

import pytest
from tests.fakes.planner_cases import problem

from kvist.core.errors import ConfigError
from kvist.planner.candidate import Shape
from kvist.planner.evaluation import placed
from kvist.planner.search_space import SpaceLimits, candidates, shapes_that_fit, split_units, with_routers


def test_every_candidate_fits_in_memory_and_in_the_devices() -> None:
    the_problem = problem(model="llama-3.1-70b")
    space = candidates(the_problem.model, the_problem.deployment, SpaceLimits(max_devices=4, max_devices_per_unit=4))

    assert len(space) > 10
    for candidate in space:
        config, step_times = placed(candidate, the_problem)
        assert candidate.num_devices == config.num_devices <= 4
        assert all((group.kv_cache_tokens or 0) >= 4096 for group in config.groups)
        assert set(step_times) == set(candidate.shapes)


def test_candidates_differ_in_their_texts() -> None:
    the_problem = problem()
    limits = SpaceLimits(
        max_devices=4, max_devices_per_unit=4, number_formats=("bf16", "fp8"), host_cache_gbs=(0.0, 64.0)
    )
    space = candidates(the_problem.model, the_problem.deployment, limits)

    routed = [each for candidate in space for each in with_routers(candidate)]

    assert len(space) >= 200
    assert len({each.text for each in routed}) == len(set(routed)) == len(routed)


def test_a_model_too_large_for_the_devices_is_refused() -> None:
    the_problem = problem(model="llama-3.1-405b")

    with pytest.raises(ConfigError, match="does not fit 2 x H100"):
        candidates(the_problem.model, the_problem.deployment, SpaceLimits(max_devices=2, max_devices_per_unit=2))


def test_ranks_divide_the_heads_and_stages_the_layers() -> None:
    the_problem = problem(model="opt-13b", device="A100")  # 40 heads, 40 layers

    shapes = shapes_that_fit(
        the_problem.model, the_problem.deployment, "fp16", SpaceLimits(max_devices=4, max_devices_per_unit=4)
    )

    assert {shape.tensor_parallel_size for shape in shapes} == {1, 2, 4}
    assert all(40 % shape.pipeline_parallel_size == 0 for shape in shapes)


def test_a_slow_network_keeps_each_pair_in_one_host() -> None:
    deployment = problem().deployment
    slow = dataclasses.replace(deployment, network_gb_per_s=3.0)
    shapes = [Shape(tensor_parallel_size=1), Shape(tensor_parallel_size=2), Shape(tensor_parallel_size=4)]
    limits = SpaceLimits(max_devices=8, max_devices_per_unit=8)

    pairs = list(split_units(shapes, slow, limits))
    ratios = list(split_units(shapes, deployment, limits))

    assert all(pair.is_pinned and pair.devices_per_unit <= 4 for pair in pairs)
    assert len(pairs) == 4  # 1+1, 1+2, 2+1, 2+2
    assert len(ratios) > len(pairs)
    assert not any(each.is_pinned for each in ratios)
