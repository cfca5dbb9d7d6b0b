"""What the advisor knows of a setup: a look at one rate first, and its goodput only where that decides something."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b

from kvist.config.cluster_toml import cluster_toml
from kvist.planner.candidate import Candidate
from kvist.planner.evaluation import Effort, Evaluation, Known, PlanningProblem, evaluate, keeps_at, placed
from kvist.planner.operating_point import SUSTAINED_SHARE, OperatingPoint, capacity_per_s, operate
from kvist.planner.techniques import Effect

LEAST_SHARE = 0.1  # of the common rate: less goodput is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A setup, what it does at the common rate, and the file that `kvist simulate` repeats it from.

    evaluation, capacity_per_s: where its goodput was searched for. config_hash: of the file.
    """

    candidate: Candidate
    point: OperatingPoint
    config_text: str
    evaluation: Evaluation | None = None
    capacity_per_s: float | None = None

    @property
    def config_hash(self) -> str:
        return blake2b(self.config_text.encode(), digest_size=6).hexdigest()

    @property
    def goodput_per_s(self) -> float | None:
        """What was found with the load, but no more than can be completed for long. None if not searched for."""
        if self.evaluation is None or self.capacity_per_s is None:
            return None
        return min(self.evaluation.rate_per_s, SUSTAINED_SHARE * self.capacity_per_s)

    def cost_of(self, effect: Effect) -> float | None:
        """What is to get smaller: P90 latency, or seconds per request. None: saturated, or no goodput."""
        if effect is Effect.TTFT:
            return self.point.ttft.p90
        if effect is Effect.TPOT:
            return self.point.tpot.p90
        rate_per_s = self.capacity_per_s if effect is Effect.CAPACITY else self.goodput_per_s
        return 1.0 / rate_per_s if rate_per_s else None


@dataclass(slots=True)
class Assessor:
    """Assesses setups at one rate for all. Remembers what it has simulated."""

    problem: PlanningProblem
    effort: Effort
    rate_per_s: float
    _found: dict[Candidate, Assessment] = field(default_factory=dict)

    @property
    def num_assessed(self) -> int:
        return len(self._found)

    def remember(self, assessment: Assessment) -> None:
        """Take in what was simulated elsewhere. What is known with its goodput stays."""
        known = self._found.get(assessment.candidate)
        if known is None or known.evaluation is None:
            self._found[assessment.candidate] = assessment

    def known(self, candidate: Candidate) -> Assessment | None:
        return self._found.get(candidate)

    def look(self, candidate: Candidate) -> Assessment:
        """Latencies at the common rate, by one run where the objective is kept there."""
        found = self._found.get(candidate)
        if found is None:
            config, step_times = placed(candidate, self.problem)
            objective = self.problem.deployment.objective
            found = self._found[candidate] = Assessment(
                candidate=candidate,
                point=operate(config, step_times, self.problem.load, objective, self.rate_per_s, trusts_objective=True),
                config_text=cluster_toml(config, profile=candidate.profile),
            )
        return found

    def keeps(self, candidate: Candidate, rate_per_s: float) -> bool:
        """Whether the objective holds at the rate; at none it does."""
        return rate_per_s <= 0.0 or keeps_at(candidate, self.problem, self.effort, rate_per_s)

    def assess(self, candidate: Candidate, near: Assessment | None) -> Assessment:
        """With its goodput. near: a setup that may do about as well."""
        found = self.look(candidate)
        if found.evaluation is None:
            config, step_times = placed(candidate, self.problem)
            capacity = (
                found.point.capacity_per_s
                if found.point.is_capacity_measured
                else capacity_per_s(config, step_times, self.problem.load)
            )
            evaluation = evaluate(
                candidate,
                self.problem,
                self.effort,
                known=Known(
                    first_rate_per_s=(near and near.goodput_per_s) or self.rate_per_s,
                    min_rate_per_s=LEAST_SHARE * self.rate_per_s,
                    max_rate_per_s=SUSTAINED_SHARE * capacity,
                ),
            )
            found = self._found[candidate] = replace(found, evaluation=evaluation, capacity_per_s=capacity)
        return found


def gain_of(effect: Effect, before: Assessment, after: Assessment) -> float | None:
    """Share by which the metric improved: of a latency how much of it went away, of goodput how much came.

    Out of saturation into a latency that can be told: 1, all of it; into saturation: -1. None if neither can be told.
    """
    is_rate = effect in (Effect.GOODPUT, Effect.CAPACITY)
    if is_rate and (before.evaluation is None or after.evaluation is None):
        return None
    old, new = before.cost_of(effect), after.cost_of(effect)
    if old is None and new is None:
        return None
    if new is None:
        return -1.0
    if old is None:
        return 1.0
    return old / new - 1.0 if is_rate else 1.0 - new / old
