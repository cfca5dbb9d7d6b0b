"""Placements of prefill and decode replicas on devices of one kind, and the best of them by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from kvist.costmodel.device_catalogue import find_device
from kvist.costmodel.model_catalogue import find_model_spec
from kvist.planner.bounds import load_facts
from kvist.planner.candidate import Candidate, Deployment, Shape
from kvist.planner.evaluation import Effort, Evaluation, Known, PlanningProblem, StepTimeOfGroup, evaluate
from kvist.planner.plan_load import PlanLoad, draws_of_load
from kvist.planner.service_level_objective import ServiceLevelObjective
from kvist.workload.adapting import with_total_length
from kvist.workload.load_file import scenario_loads

DEVICE = "A100-80GB-SXM"
SLOW_NETWORK_GB_PER_S = 25 / 8  # 25 Gb/s between hosts: pairs stay in one host (Alg. 2)
SEED = 20261130
OPT_TOKENS = 2048
FULL_REQUESTS, QUICK_REQUESTS = 1500, 400
HOPEFUL = 0.85  # of the best goodput per device: a placement below is not looked at closely


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The best placement of a kind, by goodput per device, and all that were judged."""

    best: Evaluation
    judged: Sequence[Evaluation]

    def rival_of(self, candidate: Candidate) -> Evaluation:
        """The best of the others."""
        return max((each for each in self.judged if each.candidate != candidate), key=lambda each: each.rate_per_device)


def problem_of(
    model: str, load: PlanLoad, objective: ServiceLevelObjective, step_time_of: StepTimeOfGroup | None
) -> PlanningProblem:
    device = find_device(DEVICE)
    return PlanningProblem(
        deployment=Deployment(
            model=model,
            device=device,
            devices_per_node=8,
            network_gb_per_s=SLOW_NETWORK_GB_PER_S,
            price_per_device_hour=device.price_per_hour,
            objective=objective,
        ),
        model=find_model_spec(model),
        load=load,
        facts=load_facts(load),
        step_time_of=step_time_of,
    )


def best_placement(candidates: Sequence[Candidate], problem: PlanningProblem, effort: Effort) -> Placed:
    """By goodput per device. The search of one that is surely worse ends early: its goodput is then given too low."""
    judged: list[Evaluation] = []
    best_per_device = 0.0
    for candidate in candidates:
        least = HOPEFUL * best_per_device * candidate.num_devices
        found = evaluate(candidate, problem, effort, known=Known(min_rate_per_s=least))
        judged.append(found)
        best_per_device = max(best_per_device, found.rate_per_device)
    return Placed(best=max(judged, key=lambda each: each.rate_per_device), judged=judged)


def pairs(shapes: Sequence[Shape], max_devices: int) -> list[Candidate]:
    """One prefill and one decode replica in one host: Alg. 2 within a node."""
    return [
        pair(prefill, decode)
        for prefill, decode in product(shapes, repeat=2)
        if prefill.num_devices + decode.num_devices <= max_devices
    ]


def pair(prefill: Shape, decode: Shape) -> Candidate:
    """No prefix cache, as DistServe has none; nothing is shared in its loads."""
    return Candidate(
        prefill=prefill,
        decode=decode,
        policy="prefill_first",
        token_budget=2048,
        number_format="fp16",
        enable_prefix_caching=False,
        is_pinned=True,
    )


def colocated(shapes: Sequence[Shape], policy: str = "prefill_first") -> list[Candidate]:
    return [
        Candidate(mixed=shape, policy=policy, token_budget=2048, number_format="fp16", enable_prefix_caching=False)
        for shape in shapes
    ]


def shapes(ranks: Sequence[int], stages: Sequence[int]) -> list[Shape]:
    return [Shape(tensor_parallel_size=tp, pipeline_parallel_size=pp) for tp, pp in product(ranks, stages)]


def sharegpt(*, is_quick: bool) -> PlanLoad:
    """OPT takes 2,048 tokens, prompt and answer together."""
    load = draws_of_load(
        scenario_loads().load("sharegpt"), num_draws=1, num_requests=QUICK_REQUESTS if is_quick else None
    )
    return replace(load, draws=tuple(with_total_length(draw, OPT_TOKENS) for draw in load.draws))


def name_of(evaluation: Evaluation) -> str:
    """The placement alone."""
    return evaluation.candidate.text.split(",")[0]
