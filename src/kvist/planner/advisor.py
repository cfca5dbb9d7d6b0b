"""Walks the staged optimization: must-haves, then time to first token, time per output token, throughput.

In each stage the technique with the largest simulated gain is taken, again and again, until the best one left gains
less than its complexity asks for. Every setup is judged on the same load; latencies at one rate for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from kvist.config.cluster_toml import cluster_toml
from kvist.core.errors import ConfigError
from kvist.planner.candidate import Candidate, Shape
from kvist.planner.evaluation import Effort, Evaluation, PlanningProblem, evaluate, placed
from kvist.planner.operating_point import OperatingPoint, capacity_per_s, operate
from kvist.planner.search_space import splits_heads
from kvist.planner.techniques import (
    CHOICES,
    MIN_GAINS,
    MUST_HAVES,
    Complexity,
    Effect,
    Surroundings,
    Technique,
    plain_baseline,
)

REFERENCE_SHARE = 0.6  # of the capacity with all must-haves: the rate at which latencies are compared
MAX_LOSS = 0.05  # of goodput, and of the latency of the stages before, that a technique may cost
STAGES = (Effect.TTFT, Effect.TPOT, Effect.GOODPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A setup, what it does, and the file that `kvist simulate` repeats it from. config_hash: of that file."""

    candidate: Candidate
    evaluation: Evaluation
    point: OperatingPoint
    config_text: str

    @property
    def config_hash(self) -> str:
        return blake2b(self.config_text.encode(), digest_size=6).hexdigest()

    @property
    def goodput_per_s(self) -> float:
        return self.evaluation.rate_per_s

    def cost_of(self, effect: Effect) -> float | None:
        """What the stage makes smaller: P90 latency, or seconds per good request. None: saturated, or no goodput."""
        if effect is Effect.TTFT:
            return self.point.ttft.p90
        if effect is Effect.TPOT:
            return self.point.tpot.p90
        return 1.0 / self.goodput_per_s if self.goodput_per_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A technique on top of the setup before it. gain: share by which the stage's metric improved; None: not to say,
    since one of both is saturated. is_taken, why: what was made of it."""

    technique: Technique
    stage: Effect | None
    before: Assessment
    after: Assessment
    gain: float | None
    is_taken: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """taken: in order; refused: the last trial of each technique that was left out."""

    baseline: Assessment
    taken: Sequence[Tried]
    refused: Sequence[Tried]
    final: Assessment
    reference_rate_per_s: float
    num_assessed: int


@dataclass(slots=True)
class Advisor:
    """say: told what is being simulated."""

    problem: PlanningProblem
    num_devices: int
    effort: Effort
    say: Callable[[str], None]
    preferred: Sequence[str] = ()  # names of techniques that a guide puts first: of equal gains they are taken
    _reference_rate_per_s: float = 0.0
    _assessed: dict[Candidate, Assessment] = field(default_factory=dict)

    def advise(self) -> Advice:
        """Raises ConfigError if the model fits no number of the devices."""
        current = self._baseline()
        with_must_haves = current
        for technique in MUST_HAVES:
            with_must_haves = technique.apply(with_must_haves, self._around) or with_must_haves
        config, step_times = placed(with_must_haves, self.problem)
        self._reference_rate_per_s = REFERENCE_SHARE * capacity_per_s(config, step_times, self.problem.load)
        baseline = state = self.assess(current)
        taken: list[Tried] = []
        for technique in MUST_HAVES:
            candidate = technique.apply(state.candidate, self._around)
            if candidate is not None:
                after = self.assess(candidate)
                taken.append(self._tried(technique, None, state, after, is_taken=True, why="a must-have"))
                state = after
        refused: dict[str, Tried] = {}
        for stage in STAGES:
            while True:
                best, others = self._best_of_stage(stage, state, {each.technique.name for each in taken})
                refused |= {each.technique.name: each for each in others}
                if best is None:
                    break
                taken.append(best)
                refused.pop(best.technique.name, None)
                state = best.after
        return Advice(
            baseline=baseline,
            taken=taken,
            refused=list(refused.values()),
            final=state,
            reference_rate_per_s=self._reference_rate_per_s,
            num_assessed=len(self._assessed),
        )

    def assess(self, candidate: Candidate) -> Assessment:
        """Its goodput, and its latencies at the common rate. Remembered."""
        found = self._assessed.get(candidate)
        if found is None:
            self.say(candidate.text)
            config, step_times = placed(candidate, self.problem)
            objective = self.problem.deployment.objective
            found = self._assessed[candidate] = Assessment(
                candidate=candidate,
                evaluation=evaluate(candidate, self.problem, self.effort),
                point=operate(config, step_times, self.problem.load, objective, self._reference_rate_per_s),
                config_text=cluster_toml(config),
            )
        return found

    @property
    def _around(self) -> Surroundings:
        return Surroundings(
            model=self.problem.model, device=self.problem.deployment.device, num_devices=self.num_devices
        )

    def _baseline(self) -> Candidate:
        """On the fewest devices per replica that hold the model and the longest request."""
        longest = max(prompt + output for prompt, output in self.problem.load.lengths())
        ranks = 1
        while ranks <= min(self.num_devices, self.problem.deployment.devices_per_node):
            shape = Shape(tensor_parallel_size=ranks)
            if splits_heads(self.problem.model, ranks):
                model = self.problem.model
                plain = plain_baseline(
                    shape, num_devices=self.num_devices, model=model, kv_tokens=longest, longest_request=longest
                )
                num_tokens = self._kv_tokens(plain)
                if num_tokens >= longest:
                    return plain_baseline(
                        shape, num_devices=self.num_devices, model=model, kv_tokens=num_tokens, longest_request=longest
                    )
            ranks *= 2
        raise ConfigError(
            f"{self.problem.deployment.model} and a request of {longest} tokens fit no replica of up to "
            f"{self.num_devices} x {self.problem.deployment.device.name}: take more devices"
        )

    def _kv_tokens(self, candidate: Candidate) -> int:
        try:
            config, _ = placed(candidate, self.problem)
        except ConfigError:
            return 0
        return config.groups[0].kv_cache_tokens or 0

    def _best_of_stage(self, stage: Effect, state: Assessment, done: set[str]) -> tuple[Tried | None, list[Tried]]:
        trials = []
        for technique in CHOICES:
            if stage not in technique.effects or technique.name in done:
                continue
            candidate = technique.apply(state.candidate, self._around)
            if candidate is None or self._kv_tokens(candidate) == 0:
                continue
            trials.append(self._judged(technique, stage, state, self.assess(candidate)))
        hopeful = [each for each in trials if each.is_taken]
        if not hopeful:
            return None, trials
        best = max(hopeful, key=lambda each: (each.gain or 0.0, each.technique.name in self.preferred))
        others = [
            each if not each.is_taken else replace(each, is_taken=False, why=f"{best.technique.name} gains more")
            for each in trials
            if each is not best
        ]
        return best, others

    def _judged(self, technique: Technique, stage: Effect, before: Assessment, after: Assessment) -> Tried:
        gain = gain_of(stage, before, after)
        least = MIN_GAINS[technique.complexity]
        loss = 1.0 - after.goodput_per_s / before.goodput_per_s if before.goodput_per_s else 0.0
        if loss > MAX_LOSS:
            why, is_taken = f"costs {loss:.0%} of goodput", False
        elif spoilt := self._spoilt_stage(stage, before, after):
            why, is_taken = f"makes the {spoilt} worse", False
        elif gain is None or gain < least:
            gained = "nothing that can be told" if gain is None else f"{gain:.0%}"
            why, is_taken = f"gains {gained}, less than the {least:.0%} that its complexity asks for", False
        else:
            why, is_taken = f"gains {gain:.0%} of {stage}", True
        return self._tried(technique, stage, before, after, is_taken=is_taken, why=why)

    def _spoilt_stage(self, stage: Effect, before: Assessment, after: Assessment) -> Effect | None:
        """The first earlier stage that loses more than it may."""
        for earlier in STAGES[: STAGES.index(stage)]:
            gain = gain_of(earlier, before, after)
            if gain is not None and gain < -MAX_LOSS:
                return earlier
        return None

    def _tried(
        self,
        technique: Technique,
        stage: Effect | None,
        before: Assessment,
        after: Assessment,
        *,
        is_taken: bool,
        why: str,
    ) -> Tried:
        return Tried(
            technique=technique,
            stage=stage,
            before=before,
            after=after,
            gain=gain_of(stage or Effect.GOODPUT, before, after),
            is_taken=is_taken,
            why=why,
        )


def gain_of(effect: Effect, before: Assessment, after: Assessment) -> float | None:
    """Share by which the metric improved: of a latency how much of it went away, of goodput how much came.

    Out of saturation into a latency that can be told: 1, all of it; into saturation: -1. None if neither can be told.
    """
    old, new = before.cost_of(effect), after.cost_of(effect)
    if old is None and new is None:
        return None
    if new is None:
        return -1.0
    if old is None:
        return 1.0
    return old / new - 1.0 if effect is Effect.GOODPUT else 1.0 - new / old


def complexity_of(tried: Sequence[Tried]) -> Complexity:
    """The highest of those taken."""
    ranks = list(Complexity)
    return max((each.technique.complexity for each in tried), key=ranks.index, default=Complexity.LOW)
