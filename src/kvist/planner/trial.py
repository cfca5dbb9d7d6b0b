"""One simulated run of one cluster under one load, judged against the objective, and ended as soon as that is sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvist.config.cluster_config import ClusterConfig
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.planner.plan_load import Draw
from kvist.planner.service_level_objective import ServiceLevelObjective
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.simulation_result import SimulatedRequest, SimulationResult

StepTimes = Mapping[str, StepTimeModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """num_good, num_bad: of the requests that had ended when the run was; of `total`.

    goal: the attainment asked for. holds: whether it is kept, sure although the rest had not ended: enough were good,
    or too many bad. num_steps, num_tokens: that were simulated for it; tokens of outputs.
    """

    goal: float
    rate_per_s: float
    num_good: int
    num_bad: int
    total: int
    holds: bool
    num_steps: int = 0
    num_tokens: int = 0

    @property
    def is_complete(self) -> bool:
        return self.num_good + self.num_bad == self.total

    @property
    def attainment(self) -> float | None:
        """Share of good requests; None where the run ended early."""
        return self.num_good / self.total if self.is_complete else None


class Verdict:
    """A StopRule: counts good and bad requests until their numbers decide. is_patient: until all have ended."""

    def __init__(self, objective: ServiceLevelObjective, total: int, *, is_patient: bool = False) -> None:
        self._objective = objective
        self._num_needed = objective.num_needed(total)
        self._max_bad = total - self._num_needed
        self._is_patient = is_patient
        self._total = total
        self.num_good = 0
        self.num_bad = 0

    def note_ended(self, request: SimulatedRequest) -> None:
        if self._objective.is_good(request):
            self.num_good += 1
        else:
            self.num_bad += 1

    @property
    def holds(self) -> bool:
        return self.num_good >= self._num_needed

    @property
    def is_decided(self) -> bool:
        return not self._is_patient and (self.holds or self.num_bad > self._max_bad)

    def judged(self, rate_per_s: float) -> Judged:
        return Judged(
            goal=self._objective.attainment,
            rate_per_s=rate_per_s,
            num_good=self.num_good,
            num_bad=self.num_bad,
            total=self._total,
            holds=self.holds,
        )


def judge(
    config: ClusterConfig, step_times: StepTimes, records: Draw, objective: ServiceLevelObjective, rate_per_s: float
) -> Judged:
    """Whether the objective holds. rate_per_s: at which `records` come, for the record."""
    verdict = Verdict(objective, len(records))
    result = simulate(config, records, step_times, stop_rule=verdict)
    return replace(
        verdict.judged(rate_per_s),
        num_steps=sum(replica.num_steps for replica in result.replicas),
        num_tokens=sum(len(request.token_times_ns) for request in result.requests),
    )


def watch(
    config: ClusterConfig, step_times: StepTimes, records: Draw, objective: ServiceLevelObjective, rate_per_s: float
) -> tuple[Judged, SimulationResult]:
    """The same to the end of the load, with all that happened."""
    verdict = Verdict(objective, len(records), is_patient=True)
    result = simulate(config, records, step_times, stop_rule=verdict)
    return verdict.judged(rate_per_s), result
