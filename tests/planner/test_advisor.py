"""Techniques, and the walk through the stages."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from tests.fakes.planner_cases import host_problem, problem

from kvist.core.errors import ConfigError
from kvist.costmodel.materialized_attention import MaterializedAttention
from kvist.costmodel.step_work import StepWork
from kvist.planner.advisor import Advice, Advisor
from kvist.planner.assessment import gain_of
from kvist.planner.bounds import chains
from kvist.planner.candidate import Candidate, Shape
from kvist.planner.evaluation import Effort, PlanningProblem, placed
from kvist.planner.guide import SCENARIOS, compared_with_guide, size_choice
from kvist.planner.search import run_here
from kvist.planner.techniques import CHOICES, MIN_GAINS, MUST_HAVES, Effect, Surroundings, plain_baseline
from kvist.planner.toolbox import find_toolbox
from kvist.workload.load_file import shipped_loads
from kvist.workload.recorded_load import SHIPPED_TRACES
from kvist.workload.trace_record import TextPart, TraceRecord

EFFORT = Effort(num_lifetimes=0.2, min_requests=10, tolerance=0.5)
NAMES = {technique.name for technique in (*MUST_HAVES, *CHOICES)}


def plain(num_devices: int = 2) -> Candidate:
    model = problem().model
    return plain_baseline(
        Shape(tensor_parallel_size=1), num_devices=num_devices, model=model, kv_tokens=20_000, longest_request=1000
    )


def advise(the_problem: PlanningProblem, said: list[str]) -> Advice:
    run_all = run_here(the_problem)
    return Advisor(problem=the_problem, num_devices=1, effort=EFFORT, run_all=run_all, say=said.append).advise()


def test_must_haves_turn_the_plain_baseline_into_an_engine_of_today() -> None:
    candidate = plain()
    around = Surroundings(model=problem().model, device=problem().deployment.device, num_devices=2)

    for technique in MUST_HAVES:
        changed = technique.apply(candidate, around)
        assert changed is not None
        candidate = changed

    assert candidate == Candidate(
        mixed=Shape(tensor_parallel_size=1),
        num_units=2,
        policy="prefill_first",
        router="round_robin",
        enable_prefix_caching=False,
    )
    assert all(technique.apply(candidate, around) is None for technique in MUST_HAVES)


def test_no_technique_takes_more_devices() -> None:
    around = Surroundings(model=problem().model, device=problem().deployment.device, num_devices=4)
    start = dataclasses.replace(plain(4), enable_prefix_caching=True)

    for technique in CHOICES:
        changed = technique.apply(start, around)
        assert changed is None or changed.num_devices <= start.num_devices
        assert changed is None or technique.apply(changed, around) != changed


def test_materialized_scores_cost_time_and_copied_heads_cost_room() -> None:
    the_problem = problem()
    old_config, old_times = placed(plain(), the_problem)
    new_config, new_times = placed(dataclasses.replace(plain(), attention="flash", num_kv_heads=None), the_problem)
    work = StepWork.of([(2000, 0)], num_sampled=1)

    assert isinstance(old_times["mixed"], MaterializedAttention)
    assert old_times["mixed"].predict_s(work) > new_times["mixed"].predict_s(work)
    old_tokens, new_tokens = old_config.groups[0].kv_cache_tokens, new_config.groups[0].kv_cache_tokens
    assert old_tokens is not None
    assert new_tokens is not None
    assert new_tokens > 3 * old_tokens


def test_advice_takes_what_pays_and_says_why_it_leaves_the_rest() -> None:
    said: list[str] = []

    advice = advise(problem(), said)

    assert [each.technique.name for each in advice.taken][:4] == [each.name for each in MUST_HAVES]
    assert (advice.final.goodput_per_s or 0.0) >= (advice.baseline.goodput_per_s or 0.0)
    assert [each for each in said if "techniques for the" in each]
    for each in advice.taken[4:]:
        assert each.gain is not None
        assert each.gain >= MIN_GAINS[each.technique.complexity]
    assert all(each.why and not each.is_taken for each in advice.refused)
    assert compared_with_guide(advice, ["PagedAttention", "KV-centric cluster"])
    assert gain_of(Effect.GOODPUT, advice.final, advice.final) == pytest.approx(0.0)


def test_the_guide_names_techniques_and_loads_that_there_are() -> None:
    for scenario in SCENARIOS.values():
        assert set(scenario.techniques) <= NAMES
        assert scenario.load in shipped_loads().loads or scenario.load in SHIPPED_TRACES
    for num_parameters in (3_000_000_000, 13_000_000_000, 70_000_000_000):
        words, techniques = size_choice(num_parameters)
        assert words
        assert set(techniques) <= NAMES


def test_a_model_that_fits_nowhere_is_refused() -> None:
    said: list[str] = []

    with pytest.raises(ConfigError, match="fit no replica"):
        advise(problem(model="llama-3.1-405b"), said)


def test_chains_of_requests_are_as_long_as_their_longest_branch() -> None:
    part = (TextPart("text", 0, 8),)

    def record(index: int, after: int | None) -> TraceRecord:
        return TraceRecord(index=index, arrival_s=2.0, prompt=part, num_output_tokens=1, after=after)

    assert chains([record(0, None), record(1, 0), record(2, 0), record(3, 2), record(4, None)]) == (2.0, 2.0)


def test_advice_on_a_measured_host_uses_what_was_measured() -> None:
    the_problem = host_problem(profiles=("wide.json", "narrow.json"))

    advice = advise(the_problem, [])

    tried = {each.technique.name for each in (*advice.taken, *advice.refused)}
    assert {"PagedAttention", "continuous batching", "quantization (narrow.json)"} <= tried
    assert not tried & {"FlashAttention", "GQA", "tensor parallelism", "host tier"}
    for each in (*advice.taken, *advice.refused):
        candidate = each.after.candidate
        table = the_problem.hosts[candidate.profile or ""].table
        assert candidate.max_num_seqs <= table.max_sequences
        assert candidate.token_budget <= table.max_step_tokens


def test_no_budget_in_seconds_without_a_target_per_token() -> None:
    toolbox = find_toolbox(host_problem(slo="ttft=1s"), 1)

    assert "budget in seconds" not in [technique.name for technique in toolbox.choices]


def test_profiles_of_different_models_are_no_number_formats_of_one() -> None:
    the_problem = host_problem(profiles=("one.json", "other.json"))
    other = the_problem.hosts["other.json"]
    spec = dataclasses.replace(other.engine.model_spec, num_layers=3)
    changed = dataclasses.replace(other, engine=msgspec.structs.replace(other.engine, model_spec=spec))

    with pytest.raises(ConfigError, match="of another model"):
        find_toolbox(dataclasses.replace(the_problem, hosts={**the_problem.hosts, "other.json": changed}), 1)
