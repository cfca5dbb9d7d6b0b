"""Judges one candidate: places it, bounds it, and searches for its goodput by simulation. Runs in any process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kvist.config.cluster_config import ClusterConfig, ReplicaGroupConfig
from kvist.core.errors import ConfigError
from kvist.core.model_spec import ModelSpec
from kvist.costmodel.engine_generation import CURRENT
from kvist.costmodel.memory import kv_bytes_per_token
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork
from kvist.planner.bounds import Bound, LoadFacts, bound
from kvist.planner.candidate import Candidate, Deployment, cluster_of
from kvist.planner.goodput_search import GROWTH, Goodput, search_goodput
from kvist.planner.measured_host import MeasuredHost, placed_on_host
from kvist.planner.plan_load import PlanLoad
from kvist.planner.trial import Judged, judge
from kvist.simulator.placed_cluster import place_cluster, placement_of

StepTimeOfGroup = Callable[[ReplicaGroupConfig], StepTimeModel]

USUAL_TPOT_S = 0.05  # where no target says more
FIRST_SHARE = 0.6  # of the bound: where searches begin
GC_THRESHOLD = 200_000  # for processes that simulate at length: they make many objects and few cycles
KNOWN_GROWTH = 1.15  # the first step of a search that begins where a shorter run ended


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """All that judging a candidate needs.

    generation: of the engine whose measured efficiency predicts step times. step_time_of: predicts them instead; raises
    ConfigError for a group that it cannot predict. hosts: measured ones by the name of their profile, in place of
    devices of the catalogue.
    """

    deployment: Deployment
    model: ModelSpec
    load: PlanLoad
    facts: LoadFacts
    generation: str = CURRENT
    step_time_of: StepTimeOfGroup | None = None
    hosts: Mapping[str, MeasuredHost] = field(default_factory=dict)

    @property
    def lifetime_s(self) -> float:
        """How long a request is there that just keeps its targets or, where others follow it, they all together."""
        objective = self.deployment.objective
        tpot_s = USUAL_TPOT_S if objective.tpot_s is None else objective.tpot_s
        alone_s = (objective.ttft_s or 0.0) + self.facts.mean_output_tokens * tpot_s
        return self.facts.chain_length * alone_s + self.facts.chain_pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to look: how long runs are, and how close the search's bracket is to end.

    num_lifetimes: length of a run, in lifetimes of a request: a shorter one ends before its queues have grown, and
    takes an overloaded cluster for a good one. min_requests: of a run, if the load's draws have so many.
    """

    num_lifetimes: float
    min_requests: int
    tolerance: float

    def num_requests(self, rate_per_s: float, lifetime_s: float) -> int:
        return max(self.min_requests, math.ceil(rate_per_s * self.num_lifetimes * lifetime_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a goodput before the search.

    first_rate_per_s: where to begin. min_rate_per_s: what is worth knowing, see `search_goodput`. max_rate_per_s: the
    most there can be, such as a measured capacity.
    """

    first_rate_per_s: float | None = None
    min_rate_per_s: float = 0.0
    max_rate_per_s: float = math.inf


NOTHING = Known()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """goodput: of the whole candidate; None where it was left out, with `why`.

    num_simulations: runs that it took; num_steps, num_tokens: of all of them.
    """

    candidate: Candidate
    bound: Bound
    goodput: Goodput | None
    why: str = ""
    num_simulations: int = 0

    @property
    def num_steps(self) -> int:
        return 0 if self.goodput is None else sum(each.num_steps for each in self.goodput.judgements)

    @property
    def num_tokens(self) -> int:
        return 0 if self.goodput is None else sum(each.num_tokens for each in self.goodput.judgements)

    @property
    def rate_per_s(self) -> float:
        return 0.0 if self.goodput is None else self.goodput.rate_per_s

    @property
    def rate_per_device(self) -> float:
        return self.rate_per_s / self.candidate.num_devices


@dataclass(frozen=True, slots=True)
class ScaledStepTime:
    """A model whose steps take `factor` times as long as another's: what is left of a plan if a prediction is off."""

    model: StepTimeModel
    decode_factor: float
    prefill_factor: float

    def predict_s(self, work: StepWork) -> float:
        return self.model.predict_s(work) * (self.prefill_factor if work.prefill_pairs else self.decode_factor)

    def margin_s(self, work: StepWork) -> float:
        return self.model.margin_s(work)


def placed(candidate: Candidate, problem: PlanningProblem) -> tuple[ClusterConfig, dict[str, StepTimeModel]]:
    """The cluster with its room for KV, and step times by group. Raises ConfigError if a group does not fit."""
    if candidate.profile is not None:
        return placed_on_host(candidate, problem.deployment, problem.hosts[candidate.profile])
    rough = cluster_of(candidate, problem.deployment, kv_bytes_per_token=1)
    find_model = {problem.deployment.model: problem.model}.__getitem__
    num_bytes = round(kv_bytes_per_token(placement_of(rough.groups[0], find_model)))
    config = cluster_of(candidate, problem.deployment, kv_bytes_per_token=num_bytes)
    config = replace(config, cache=replace(config.cache, kv_bytes_per_token=None))
    find = problem.step_time_of
    given = {} if find is None else {group.name: find(group) for group in config.groups}
    if problem.generation != CURRENT and find is None:
        groups = tuple(replace(group, engine=problem.generation) for group in config.groups)
        config = replace(config, groups=groups)  # said in the file, so that it is simulated as it was planned
    return place_cluster(config, given, find_model=find_model)


def bound_of(candidate: Candidate, problem: PlanningProblem) -> Bound:
    """Without any simulation."""
    try:
        config, step_times = placed(candidate, problem)
    except ConfigError as error:
        return Bound(max_rate_per_s=0.0, prefill_share=0.0, why=str(error))
    return bound(config, step_times, problem.facts, problem.deployment.objective)


def evaluate(
    candidate: Candidate,
    problem: PlanningProblem,
    effort: Effort,
    *,
    draw: int = 0,
    known: Known = NOTHING,
    step_time_factors: tuple[float, float] = (1.0, 1.0),
) -> Evaluation:
    """Search for the candidate's goodput.

    step_time_factors: on steps that only decode and on others, to see what a wrong prediction would change.
    """
    try:
        config, models = placed(candidate, problem)
    except ConfigError as error:
        return Evaluation(candidate=candidate, bound=_no_bound(), goodput=None, why=str(error))
    step_times: Mapping[str, StepTimeModel] = models
    if step_time_factors != (1.0, 1.0):
        step_times = {name: ScaledStepTime(model, *step_time_factors) for name, model in models.items()}
    limit = bound(config, step_times, problem.facts, problem.deployment.objective)
    most = min(limit.max_rate_per_s, known.max_rate_per_s)
    if limit.why or most < known.min_rate_per_s:
        why = limit.why or f"no more than {most:.3g} requests/s"
        return Evaluation(candidate=candidate, bound=limit, goodput=None, why=why)
    num_simulations = 0

    def judge_at(rate_per_s: float) -> Judged:
        nonlocal num_simulations
        num_simulations += 1
        return _judge_at(config, step_times, problem, effort, rate_per_s, draw=draw)

    goodput = search_goodput(
        judge_at,
        first_rate_per_s=known.first_rate_per_s or FIRST_SHARE * limit.max_rate_per_s,
        tolerance=effort.tolerance,
        max_rate_per_s=most,
        min_rate_per_s=known.min_rate_per_s,
        first_growth=GROWTH if known.first_rate_per_s is None else KNOWN_GROWTH,
    )
    return Evaluation(candidate=candidate, bound=limit, goodput=goodput, num_simulations=num_simulations)


def keeps_at(candidate: Candidate, problem: PlanningProblem, effort: Effort, rate_per_s: float) -> bool:
    """Whether the objective holds at the rate. Raises ConfigError if the candidate does not fit."""
    config, step_times = placed(candidate, problem)
    limit = bound(config, step_times, problem.facts, problem.deployment.objective)
    if rate_per_s > limit.max_rate_per_s:
        return False
    return _judge_at(config, step_times, problem, effort, rate_per_s, draw=0).holds


def _judge_at(
    config: ClusterConfig,
    step_times: Mapping[str, StepTimeModel],
    problem: PlanningProblem,
    effort: Effort,
    rate_per_s: float,
    *,
    draw: int,
) -> Judged:
    num_requests = effort.num_requests(rate_per_s, problem.lifetime_s)
    records = problem.load.at_rate(rate_per_s, draw=draw, num_requests=num_requests)
    return judge(config, step_times, records, problem.deployment.objective, rate_per_s)


def _no_bound() -> Bound:
    return Bound(max_rate_per_s=0.0, prefill_share=0.0)
