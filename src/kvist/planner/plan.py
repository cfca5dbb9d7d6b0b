"""A plan: the winner of a search with its error bar, what else there is on the Pareto front, and why it won."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from kvist.config.cluster_config import ClusterConfig
from kvist.costmodel.profile_table import ProfileModel
from kvist.costmodel.roofline import RooflineModel
from kvist.planner.cost import Cost, cost_at
from kvist.planner.evaluation import Evaluation, Known, PlanningProblem, placed
from kvist.planner.goodput_search import Spread, spread_over_draws
from kvist.planner.operating_point import SUSTAINED_SHARE, OperatingPoint, capacity_per_s, operate
from kvist.planner.search import Rounds, RunAll, SearchResult, Task, run_task
from kvist.planner.search_space import ROUTERS

FRONT_SIZE = 8
EQUAL_WITHIN = 0.01  # figures closer than that are no choice
EQUAL_GOODPUT = 0.02  # less than searches can tell apart: then the simpler one is the plan
MAX_LOWERINGS = 8
MIN_LIFETIMES = 3.0  # of a request: how long a load must last for its queues to show


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBar:
    """Goodput of the winner in requests per second, if what it is made from is off.

    draws: over other samples of the load. slow_steps, fast_steps: with step times longer and shorter by the cost
    model's own error bar (9 of 10 measured rows kept to it): decode_bar, prefill_bar, as shares. reason: whence.
    """

    draws: Spread
    slow_steps: float
    fast_steps: float
    decode_bar: float
    prefill_bar: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPoint:
    """A whole cluster at the rate that it is planned for. latencies in `point`.

    goodput_per_s: what the search found, but no more than can be completed for long, as a short load shows no
    saturation, and no more than the whole load keeps, of which searches play a part. keeps_objective: whether the whole
    load keeps it at the planned rate.
    """

    evaluation: Evaluation
    point: OperatingPoint
    cost: Cost | None
    goodput_per_s: float
    keeps_objective: bool

    @property
    def figures(self) -> tuple[float, float, float, float]:
        """What the front is made of, all better when smaller: minus goodput, median latencies, dollars per token."""
        dollars = math.inf if self.cost is None else self.cost.per_million_output
        ttft, tpot = self.point.ttft.p50, self.point.tpot.p50
        return (
            -self.goodput_per_s,
            math.inf if ttft is None else ttft,
            math.inf if tpot is None else tpot,
            dollars,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """winner: the first of `front`. config: of the winner, complete. rate_per_s: that it is planned for, if one was.

    num_lifetimes: how long the whole load lasts at the winner's rate, in lifetimes of a request.
    """

    winner: PlanPoint
    front: Sequence[PlanPoint]
    others: Sequence[PlanPoint]
    error_bar: ErrorBar
    config: ClusterConfig
    reasons: Sequence[str]
    search: SearchResult
    rate_per_s: float | None
    num_lifetimes: float

    @property
    def is_load_long_enough(self) -> bool:
        return self.num_lifetimes >= MIN_LIFETIMES


def make_plan(
    found: SearchResult, problem: PlanningProblem, rounds: Rounds, run_all: RunAll, *, rate_per_s: float | None = None
) -> Plan:
    """Look closely at the finalists. rate_per_s: the load to plan for; None: each one's own goodput."""
    look = partial(plan_point, rate_per_s=rate_per_s, tolerance=rounds.last.tolerance)
    points = list(run_all(look, _distinct(found.finalists)[:FRONT_SIZE]))
    if rate_per_s is None:
        points.sort(key=lambda point: (not point.keeps_objective, -point.goodput_per_s))
    else:
        points.sort(key=lambda point: _devices_for(point, rate_per_s))
    winner = _simplest_equal(points, rate_per_s)
    points = [winner, *(point for point in points if point is not winner)]
    front = pareto_front(points)
    if winner not in front:  # others are better by less than can be told
        front.insert(0, winner)
    config, _ = placed(winner.evaluation.candidate, problem)
    return Plan(
        winner=winner,
        front=front,
        others=[point for point in points if point not in front],
        error_bar=error_bar(winner.evaluation, problem, rounds, run_all),
        config=config,
        reasons=reasons(winner, points[1:]),
        search=found,
        rate_per_s=rate_per_s,
        num_lifetimes=len(problem.load.draws[0]) / winner.point.rate_per_s / problem.lifetime_s,
    )


def _devices_for(point: PlanPoint, rate_per_s: float) -> float:
    """Devices of a plan that keeps the rate up; infinitely many of one that does not."""
    return point.evaluation.candidate.num_devices if point.goodput_per_s >= rate_per_s else math.inf


def _simplest_equal(points: Sequence[PlanPoint], rate_per_s: float | None) -> PlanPoint:
    """Of those as good as the first one, as far as can be told, the one with the simplest placement and router."""
    first = points[0]

    def is_equal(point: PlanPoint) -> bool:
        if rate_per_s is not None:
            return _devices_for(point, rate_per_s) == _devices_for(first, rate_per_s)
        is_close = point.goodput_per_s >= first.goodput_per_s * (1.0 - EQUAL_GOODPUT)
        return is_close and point.keeps_objective >= first.keeps_objective

    def complexity(point: PlanPoint) -> tuple[bool, int, int]:
        candidate = point.evaluation.candidate
        return candidate.is_disaggregated, candidate.num_devices, ROUTERS.index(candidate.router)

    return min(filter(is_equal, points), key=complexity)


def plan_point(
    evaluation: Evaluation, problem: PlanningProblem, *, rate_per_s: float | None, tolerance: float
) -> PlanPoint:
    """The evaluated cluster at the rate or, without one, at its own goodput.

    tolerance: of the search; by so much its goodput is lowered, again and again, while the whole load does not keep it.
    """
    config, step_times = placed(evaluation.candidate, problem)
    objective = problem.deployment.objective
    capacity = capacity_per_s(config, step_times, problem.load)
    goodput = min(evaluation.rate_per_s, SUSTAINED_SHARE * capacity)
    rate = rate_per_s or goodput
    for _ in range(MAX_LOWERINGS if rate_per_s is None else 1):
        point = operate(config, step_times, problem.load, objective, rate, known_capacity_per_s=capacity)
        keeps = point.attainment >= objective.attainment
        if keeps:
            break
        goodput = min(goodput, rate / (1.0 + tolerance))
        rate = rate_per_s or goodput
    return PlanPoint(
        evaluation=evaluation,
        point=point,
        goodput_per_s=goodput if keeps else min(goodput, point.rate_per_s),
        keeps_objective=keeps,
        cost=None
        if problem.hosts and problem.deployment.price_per_device_hour == 0.0  # nobody said what a host costs
        else cost_at(
            num_devices=evaluation.candidate.num_devices,
            price_per_device_hour=problem.deployment.price_per_device_hour,
            rate_per_s=rate,
            mean_prompt_tokens=problem.facts.mean_prompt_tokens,
            mean_output_tokens=problem.facts.mean_output_tokens,
            prefill_share=evaluation.bound.prefill_share,
        ),
    )


def pareto_front(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    """Those that no other point is as good as in everything and better in something. Of equals only the first."""
    front: list[PlanPoint] = []
    for point in points:
        is_beaten = any(
            other.figures != point.figures and all(a <= b for a, b in zip(other.figures, point.figures, strict=True))
            for other in points
        )
        if not is_beaten and not any(_are_equal(other, point) for other in front):
            front.append(point)
    return front


def _are_equal(one: PlanPoint, other: PlanPoint) -> bool:
    pairs = zip(one.figures, other.figures, strict=True)
    return all(a == b or math.isclose(a, b, rel_tol=EQUAL_WITHIN) for a, b in pairs)


def error_bar(winner: Evaluation, problem: PlanningProblem, rounds: Rounds, run_all: RunAll) -> ErrorBar:
    """Search the winner's goodput again: with other draws, and with slower and faster steps."""
    _, step_times = placed(winner.candidate, problem)
    bars = [model.error_bar for model in step_times.values() if isinstance(model, RooflineModel | ProfileModel)]
    decode = max((bar.decode for bar in bars), default=0.0)
    prefill = max((bar.prefill for bar in bars), default=0.0)
    task = Task(candidate=winner.candidate, effort=rounds.last, known=Known(first_rate_per_s=winner.rate_per_s))
    draws = [replace(task, draw=draw) for draw in range(1, len(problem.load.draws))]
    scaled = [
        replace(task, step_time_factors=factors)
        for factors in ((1.0 + decode, 1.0 + prefill), (1.0 / (1.0 + decode), 1.0 / (1.0 + prefill)))
    ]
    rates = [each.rate_per_s for each in run_all(run_task, [*draws, *scaled])]
    return ErrorBar(
        draws=spread_over_draws([winner.rate_per_s, *rates[: len(draws)]]),
        slow_steps=rates[-2],
        fast_steps=rates[-1],
        decode_bar=decode,
        prefill_bar=prefill,
        reason="; ".join(sorted({bar.reason for bar in bars})) or "step times are given",
    )


def reasons(winner: PlanPoint, others: Sequence[PlanPoint]) -> list[str]:
    """Why it won, in sentences: what it is ahead of, by how much, and what holds it and them back."""
    candidate, point = winner.evaluation.candidate, winner.point
    lines = []
    for group, share in sorted(point.utilization.items()):
        lines.append(f"{group} replicas compute {share:.0%} of the time")
    bound = winner.evaluation.bound.max_rate_per_s
    lines.append(
        f"its goodput is {winner.goodput_per_s / bound:.0%} of what its step times allow at most "
        f"({bound:.3g} requests/s)"
    )
    for label, is_other in (
        ("mixed replicas", lambda each: not each.is_disaggregated),
        ("split prefill and decode", lambda each: each.is_disaggregated),
    ):
        rivals = [other for other in others if is_other(other.evaluation.candidate)]
        if rivals and not is_other(candidate):
            rival = max(rivals, key=lambda other: other.goodput_per_s)
            ratio = winner.goodput_per_s / max(rival.goodput_per_s, 1e-12)
            lines.append(
                f"the best with {label} ({rival.evaluation.candidate.text}) has {1 / ratio:.0%} of its goodput"
            )
    same = [other for other in others if other.evaluation.candidate.shapes == candidate.shapes]
    if same:
        rival = max(same, key=lambda other: other.goodput_per_s)
        lines.append(
            f"with the same placement, {_difference(candidate, rival.evaluation.candidate)} gives "
            f"{rival.goodput_per_s / winner.goodput_per_s:.0%} of its goodput"
        )
    return lines


def _difference(winner: object, other: object) -> str:
    names = (
        "policy", "token_budget", "max_num_seqs", "kv_cache_tokens", "enable_prefix_caching", "router", "profile",
        "number_format", "host_cache_gb", "num_units",
    )  # fmt: skip
    return ", ".join(
        f"{name} {getattr(other, name)} instead of {getattr(winner, name)}"
        for name in names
        if getattr(other, name) != getattr(winner, name)
    )


def _distinct(finalists: Sequence[Evaluation]) -> list[Evaluation]:
    return [each for each in finalists if each.rate_per_s > 0.0]
