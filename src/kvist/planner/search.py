"""Searches the space of candidates: bounds first, then rounds of ever longer simulations for ever fewer of them.

Successive halving (Jamieson and Talwalkar, 2016). The first round judges placements, each under one policy; the next
ones what the best placements do under every policy and budget; all of them one unit alone, since units are equal. The
last round judges whole clusters: each under the usual router, then the best one under every other that could matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from kvist.core.errors import ConfigError
from kvist.planner.bounds import Bound
from kvist.planner.candidate import Candidate
from kvist.planner.evaluation import NOTHING, Effort, Evaluation, Known, PlanningProblem, bound_of, evaluate
from kvist.planner.search_space import ROUTERS as ALL_ROUTERS
from kvist.planner.search_space import with_routers

Item = TypeVar("Item")
Result = TypeVar("Result")
# By whether prefill is apart: a policy and its budgets, on devices of the catalogue and on measured hosts.
USUAL_POLICY = {False: ("chunked_prefill", (256, 2048)), True: ("prefill_first", (1024, 2048))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One evaluation to be done, wherever. Fields as `evaluate` takes them."""

    candidate: Candidate
    effort: Effort
    known: Known = NOTHING
    draw: int = 0
    step_time_factors: tuple[float, float] = (1.0, 1.0)


class RunAll(Protocol):
    """Does a job for each of the items, in their order, computed in any order and in any process."""

    def __call__(self, job: Callable[[Item, PlanningProblem], Result], items: Sequence[Item]) -> Iterable[Result]: ...


@dataclass(frozen=True, slots=True)
class Goal:
    """The most goodput of the devices that there are or, if `rate_per_s` is given, the fewest devices for that rate."""

    rate_per_s: float | None = None

    def score(self, candidate: Candidate, unit_rate_per_s: float) -> float:
        """More is better, and twice the goodput of a unit is twice the score."""
        if self.rate_per_s is None:
            return candidate.num_units * unit_rate_per_s
        return unit_rate_per_s / candidate.devices_per_unit

    def unit_rate_for(self, candidate: Candidate, score: float) -> float:
        """Goodput of a unit that gives the candidate this score."""
        return score / self.score(candidate, 1.0)

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
    """efforts: of each round but the last; keep: candidates that each of them leaves to the next, of the first one
    placements.

    hopeful_share: of the best score of a round, what a candidate must be able to reach; else its search ends.
    bound_share: the same for its bound, which short runs do not flatter as they do the best score.
    """

    efforts: Sequence[Effort]
    keep: Sequence[int]
    last: Effort
    num_finalists: int
    hopeful_share: float = 0.6
    bound_share: float = 0.75


FULL = Rounds(
    efforts=(
        Effort(num_lifetimes=1.0, min_requests=100, tolerance=0.25),
        Effort(num_lifetimes=1.0, min_requests=150, tolerance=0.15),
        Effort(num_lifetimes=3.0, min_requests=400, tolerance=0.08),
    ),
    keep=(8, 12, 4),
    last=Effort(num_lifetimes=5.0, min_requests=1200, tolerance=0.04),
    num_finalists=3,
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

    num_candidates: looked at; num_bounded_out: of these left out by bounds alone; num_simulations: runs of a load;
    num_steps, num_tokens: that these simulated, tokens of outputs.
    """

    finalists: Sequence[Evaluation]
    units: Sequence[Evaluation]
    num_candidates: int
    num_bounded_out: int
    num_simulations: int
    num_steps: int
    num_tokens: int


def run_here(problem: PlanningProblem) -> RunAll:
    """Does one item after another in this process."""

    def run_all(job: Callable[[Item, PlanningProblem], Result], items: Sequence[Item]) -> Iterable[Result]:
        return (job(item, problem) for item in items)

    return run_all


def run_task(task: Task, problem: PlanningProblem) -> Evaluation:
    return evaluate(
        task.candidate,
        problem,
        task.effort,
        draw=task.draw,
        known=task.known,
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
    halving = _Halving(goal, rounds, bounds, run_all)
    for number, (effort, keep) in enumerate(zip(rounds.efforts, rounds.keep, strict=True)):
        if number == 0 and len(rounds.efforts) > 1:
            placements = halving.round(_usual(left), effort, keep)
            left = [each for each in left if any(_is_placed_as(each, other) for other in placements)]
        else:
            left = halving.round(left, effort, keep)
    if not left:
        raise ConfigError(
            f"no candidate keeps {problem.deployment.objective.text} at any rate that was tried: loosen the objective, "
            "or take more or faster devices"
        )
    units = halving.units
    tasks = [
        Task(
            candidate=sized,
            effort=rounds.last,
            known=Known(first_rate_per_s=sized.num_units * units[candidate].rate_per_s),
        )
        for candidate in left[: rounds.num_finalists]
        for sized in goal.sized(candidate, units[candidate].rate_per_s)
    ]
    finalists = sorted(run_all(run_task, tasks), key=goal.rank)
    best = finalists[0]
    tasks = [
        Task(candidate=routed, effort=rounds.last, known=Known(first_rate_per_s=best.rate_per_s or None))
        for routed in with_routers(best.candidate)
        if routed != best.candidate
    ]
    finalists = sorted([*finalists, *run_all(run_task, tasks)], key=goal.rank)
    return SearchResult(
        finalists=finalists,
        units=list(units.values()),
        num_candidates=len(candidates),
        num_bounded_out=sum(halving.is_hopeless(each) for each in candidates if each not in units),
        num_simulations=sum(each.num_simulations for each in (*halving.found, *finalists)),
        num_steps=sum(each.num_steps for each in (*halving.found, *finalists)),
        num_tokens=sum(each.num_tokens for each in (*halving.found, *finalists)),
    )


@dataclass(slots=True)
class _Halving:
    """Rounds of units. best: the best score of the round so far; units: the last evaluation of each candidate.

    found: all evaluations.
    """

    goal: Goal
    rounds: Rounds
    bounds: dict[Candidate, Bound]
    run_all: RunAll
    units: dict[Candidate, Evaluation] = field(default_factory=dict)
    best: float = 0.0
    found: list[Evaluation] = field(default_factory=list)

    def round(self, candidates: Sequence[Candidate], effort: Effort, keep: int) -> list[Candidate]:
        """Those to keep, the best one first. Every round has its own mark: short runs flatter."""
        self.best = 0.0
        for batch in _batches(candidates):
            hopeful = [each for each in batch if not self.is_hopeless(each)]
            tasks = [self._task(each, effort) for each in hopeful]
            for candidate, found in zip(hopeful, self.run_all(run_task, tasks), strict=True):
                self.units[candidate] = found
                self.found.append(found)
                self.best = max(self.best, self.goal.score(candidate, found.rate_per_s))
        ranked = sorted(
            (each for each in candidates if each in self.units),
            key=lambda each: (-self.goal.score(each, self.units[each].rate_per_s), each.text),
        )
        return [each for each in ranked if self.units[each].rate_per_s > 0.0][:keep]

    def is_hopeless(self, candidate: Candidate) -> bool:
        """Whether its step times alone tell that it cannot come near the best one found."""
        score = self.goal.score(candidate, self.bounds[candidate].max_rate_per_s)
        return score <= 0.0 or score < self.rounds.bound_share * self.best

    def _task(self, candidate: Candidate, effort: Effort) -> Task:
        shorter = self.units.get(candidate)
        known = Known(
            first_rate_per_s=None if shorter is None or not shorter.rate_per_s else shorter.rate_per_s,
            min_rate_per_s=self.goal.unit_rate_for(candidate, self.rounds.hopeful_share * self.best),
        )
        return Task(candidate=candidate.unit, effort=effort, known=known)


def _usual(candidates: Sequence[Candidate]) -> list[Candidate]:
    """One candidate of each placement: under the usual policy and budget, if there is one."""
    chosen: dict[Candidate, Candidate] = {}
    for candidate in candidates:
        placement = _placement(candidate)
        policy, budgets = USUAL_POLICY[candidate.is_disaggregated]
        is_usual = candidate.policy == policy and candidate.token_budget in budgets
        if is_usual or placement not in chosen:
            chosen[placement] = candidate
    return list(chosen.values())


def _is_placed_as(candidate: Candidate, other: Candidate) -> bool:
    return _placement(candidate) == _placement(other)


def _placement(candidate: Candidate) -> Candidate:
    """The candidate without what a placement leaves open."""
    usual = Candidate()
    return replace(candidate, policy=usual.policy, token_budget=usual.token_budget)


def _batches(candidates: Sequence[Candidate]) -> Iterable[Sequence[Candidate]]:
    """A few first, then many: the first ones set the mark."""
    start, size = 0, 4
    while start < len(candidates):
        yield candidates[start : start + size]
        start, size = start + size, min(size * 2, 16)
