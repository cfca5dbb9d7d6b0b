"""Searches the space of candidates: bounds first, then rounds of ever longer simulations for ever fewer of them.

Successive halving (Jamieson and Talwalkar, 2016). Rounds but the last judge one unit of a candidate alone, since units
are equal; the last one judges whole clusters, under every router that could matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kvist.core.errors import ConfigError
from kvist.planner.bounds import Bound
from kvist.planner.candidate import Candidate
from kvist.planner.evaluation import Effort, Evaluation, PlanningProblem, bound_of, evaluate
from kvist.planner.search_space import ROUTERS as ALL_ROUTERS
from kvist.planner.search_space import with_routers


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One evaluation to be done, wherever."""

    candidate: Candidate
    effort: Effort
    first_rate_per_s: float | None = None
    draw: int = 0
    step_time_factors: tuple[float, float] = (1.0, 1.0)


RunAll = Callable[[Sequence[Task]], Iterable[Evaluation]]  # in the order of the tasks, computed in any order


@dataclass(frozen=True, slots=True)
class Goal:
    """The most goodput of the devices that there are or, if `rate_per_s` is given, the fewest devices for that rate."""

    rate_per_s: float | None = None

    def score(self, candidate: Candidate, unit_rate_per_s: float) -> float:
        """More is better, and twice the goodput of a unit is twice the score."""
        if self.rate_per_s is None:
            return candidate.num_units * unit_rate_per_s
        return unit_rate_per_s / candidate.devices_per_unit

    def sized(self, candidate: Candidate, unit_rate_per_s: float) -> list[Candidate]:
        """Numbers of units to try: for a rate as many as it takes, and one more in case they do not add up."""
        if self.rate_per_s is None:
            return [candidate]
        num_units = max(1, math.ceil(self.rate_per_s / unit_rate_per_s))
        return [replace(candidate, num_units=number) for number in (num_units, num_units + 1)]

    def rank(self, whole: Evaluation) -> tuple[float, float, int, str]:
        """To sort whole clusters by, the best one first; of equals the one with the simplest router."""
        router = ALL_ROUTERS.index(whole.candidate.router)
        num_devices, rate = whole.candidate.num_devices, whole.rate_per_s
        if self.rate_per_s is None:
            return (-rate, num_devices, router, whole.candidate.text)
        return (num_devices if rate >= self.rate_per_s else math.inf, -rate, router, whole.candidate.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """efforts: of each round but the last; keep: candidates that each of them leaves to the next."""

    efforts: Sequence[Effort]
    keep: Sequence[int]
    last: Effort
    num_finalists: int
    bound_share: float = 0.5  # a candidate is left out whose bound is less than so much of the best goodput found


FULL = Rounds(
    efforts=(
        Effort(num_lifetimes=1.0, min_requests=100, tolerance=0.3),
        Effort(num_lifetimes=3.0, min_requests=400, tolerance=0.1),
    ),
    keep=(24, 8),
    last=Effort(num_lifetimes=8.0, min_requests=1200, tolerance=0.03),
    num_finalists=4,
)
QUICK = Rounds(
    efforts=(Effort(num_lifetimes=0.5, min_requests=24, tolerance=0.5),),
    keep=(2,),
    last=Effort(num_lifetimes=1.0, min_requests=60, tolerance=0.1),
    num_finalists=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """finalists: whole clusters, the best one first. units: the last evaluation of every candidate that was simulated.

    num_candidates: looked at; num_bounded_out: of these left out by bounds alone; num_simulations: runs of a load.
    """

    finalists: Sequence[Evaluation]
    units: Sequence[Evaluation]
    num_candidates: int
    num_bounded_out: int
    num_simulations: int


def run_here(problem: PlanningProblem) -> RunAll:
    """Evaluates one task after another in this process."""
    return lambda tasks: (run_task(task, problem) for task in tasks)


def run_task(task: Task, problem: PlanningProblem) -> Evaluation:
    return evaluate(
        task.candidate,
        problem,
        task.effort,
        draw=task.draw,
        first_rate_per_s=task.first_rate_per_s,
        step_time_factors=task.step_time_factors,
    )


def search(
    candidates: Sequence[Candidate], problem: PlanningProblem, goal: Goal, rounds: Rounds, run_all: RunAll
) -> SearchResult:
    """Rank candidates by the goal. Raises ConfigError if none keeps the objective."""
    bounds = {candidate: bound_of(candidate.unit, problem) for candidate in candidates}
    left = sorted(bounds, key=lambda each: (-goal.score(each, bounds[each].max_rate_per_s), each.text))
    left = [candidate for candidate in left if bounds[candidate].max_rate_per_s > 0.0]
    if not left:
        reasons = sorted({each.why for each in bounds.values()})
        raise ConfigError(f"no candidate can keep {problem.deployment.objective.text}: {'; '.join(reasons[:3])}")
    units: dict[Candidate, Evaluation] = {}
    num_simulations, best = 0, 0.0
    for effort, keep in zip(rounds.efforts, rounds.keep, strict=True):
        # A good candidate is found among the first; what cannot come near it is then left out.
        for batch in _batches(left):
            hopeful = [each for each in batch if _is_hopeful(each, bounds[each], best, rounds, goal)]
            tasks = [_unit_task(each, effort, units.get(each)) for each in hopeful]
            for candidate, found in zip(hopeful, run_all(tasks), strict=True):
                units[candidate] = found
                num_simulations += found.num_simulations
                best = max(best, goal.score(candidate, found.rate_per_s))
        ranked = sorted(
            (each for each in left if each in units),
            key=lambda each: (-goal.score(each, units[each].rate_per_s), each.text),
        )
        left = [each for each in ranked if units[each].rate_per_s > 0.0][:keep]
        best = 0.0  # short runs flatter: the next round's are compared with each other
    if not left:
        raise ConfigError(
            f"no candidate keeps {problem.deployment.objective.text} at any rate that was tried: loosen the objective, "
            "or take more or faster devices"
        )
    tasks = [
        Task(
            candidate=routed,
            effort=rounds.last,
            first_rate_per_s=sized.num_units * units[candidate].rate_per_s,
        )
        for candidate in left[: rounds.num_finalists]
        for sized in goal.sized(candidate, units[candidate].rate_per_s)
        for routed in with_routers(sized)
    ]
    finalists = sorted(
        run_all(tasks), key=lambda each: (-each.rate_per_s, each.candidate.num_devices, each.candidate.text)
    )
    num_simulations += sum(each.num_simulations for each in finalists)
    return SearchResult(
        finalists=finalists,
        units=[units[each] for each in units],
        num_candidates=len(candidates),
        num_bounded_out=len(candidates) - len(units),
        num_simulations=num_simulations,
    )


def _unit_task(candidate: Candidate, effort: Effort, known: Evaluation | None) -> Task:
    first = None if known is None or not known.rate_per_s else known.rate_per_s
    return Task(candidate=candidate.unit, effort=effort, first_rate_per_s=first)


def _is_hopeful(candidate: Candidate, limit: Bound, best: float, rounds: Rounds, goal: Goal) -> bool:
    return goal.score(candidate, limit.max_rate_per_s) >= rounds.bound_share * best


def _batches(candidates: Sequence[Candidate]) -> Iterable[Sequence[Candidate]]:
    """A few first, then many: the first ones set the mark."""
    start, size = 0, 8
    while start < len(candidates):
        yield candidates[start : start + size]
        start, size = start + size, size * 2
