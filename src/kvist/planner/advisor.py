"""Walks the staged optimization: must-haves, then time to first token, time per output token, throughput.

In each stage the technique with the largest simulated gain is taken, again and again, until the best one left gains
less than its complexity asks for. Every setup is judged on the same load; latencies at one rate for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvist.planner.assessment import Assessment, Assessor, gain_of
from kvist.planner.candidate import Candidate
from kvist.planner.evaluation import Effort, PlanningProblem, placed
from kvist.planner.operating_point import capacity_per_s
from kvist.planner.search import RunAll
from kvist.planner.techniques import (
    MIN_GAINS,
    Complexity,
    Effect,
    Surroundings,
    Technique,
)
from kvist.planner.toolbox import find_toolbox, room_for_kv

REFERENCE_SHARE = 0.6  # of the capacity with all must-haves: the rate at which latencies are compared
MAX_LOSS = 0.05  # of goodput, and of the latency of the stages before, that a technique may cost
STAGES = (Effect.TTFT, Effect.TPOT, Effect.GOODPUT)


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

    @classmethod
    def of(
        cls,
        technique: Technique,
        stage: Effect | None,
        before: Assessment,
        after: Assessment,
        *,
        is_taken: bool,
        why: str,
    ) -> Tried:
        """With the gain in the stage's metric, of must-haves in capacity."""
        return cls(
            technique=technique,
            stage=stage,
            before=before,
            after=after,
            gain=gain_of(stage or Effect.CAPACITY, before, after),
            is_taken=is_taken,
            why=why,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """taken: in order; refused: the last trial of each technique that was left out."""

    baseline: Assessment
    taken: Sequence[Tried]
    refused: Sequence[Tried]
    final: Assessment
    reference_rate_per_s: float
    num_assessed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A technique to be judged on top of `before`, in whatever process. known: what was simulated of the candidate."""

    technique: Technique
    stage: Effect
    before: Assessment
    candidate: Candidate
    known: Assessment | None
    effort: Effort
    rate_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A setup to be assessed, in whatever process."""

    candidate: Candidate
    effort: Effort
    rate_per_s: float


def run_trial(trial: Trial, problem: PlanningProblem) -> Tried:
    assessor = Assessor(problem=problem, effort=trial.effort, rate_per_s=trial.rate_per_s)
    if trial.known is not None:
        assessor.remember(trial.known)
    return judged(trial.technique, trial.stage, trial.before, trial.candidate, assessor)


def assess_setup(setup: Setup, problem: PlanningProblem) -> Assessment:
    return Assessor(problem=problem, effort=setup.effort, rate_per_s=setup.rate_per_s).assess(setup.candidate, None)


@dataclass(slots=True)
class Advisor:
    """run_all: simulates what does not depend on each other. say: told what is being simulated."""

    problem: PlanningProblem
    num_devices: int
    effort: Effort
    run_all: RunAll
    say: Callable[[str], None]
    preferred: Sequence[str] = ()  # names of techniques that a guide puts first: of equal gains they are taken

    def advise(self) -> Advice:
        """Raises ConfigError if the model fits no number of the devices."""
        toolbox = find_toolbox(self.problem, self.num_devices)
        chain: list[tuple[Technique | None, Candidate]] = [(None, toolbox.baseline)]
        for technique in toolbox.must_haves:
            candidate = technique.apply(chain[-1][1], self._around)
            if candidate is not None:
                chain.append((technique, candidate))
        self.say("a capacity, for the rate at which all are compared")
        rate_per_s = self._reference_rate(chain[-1][1])
        assessor = Assessor(problem=self.problem, effort=self.effort, rate_per_s=rate_per_s)
        self.say(f"{len(chain)} setups, from the plain baseline to all must-haves")
        setups = [Setup(candidate=each, effort=self.effort, rate_per_s=rate_per_s) for _, each in chain]
        assessed = list(self.run_all(assess_setup, setups))
        for each in assessed:
            assessor.remember(each)
        baseline, state = assessed[0], assessed[-1]
        taken = [
            Tried.of(technique, None, before, after, is_taken=True, why="a must-have")
            for (technique, _), before, after in zip(chain[1:], assessed, assessed[1:], strict=False)
            if technique is not None
        ]
        refused: dict[str, Tried] = {}
        for stage in STAGES:
            while True:
                done = {each.technique.name for each in taken}
                choices = [each for each in toolbox.choices if each.name not in done]
                best, others = self._best_of_stage(assessor, stage, state, choices)
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
            reference_rate_per_s=assessor.rate_per_s,
            num_assessed=assessor.num_assessed,
        )

    def _reference_rate(self, candidate: Candidate) -> float:
        """The common rate: a share of the capacity of the candidate, which has all must-haves."""
        config, step_times = placed(candidate, self.problem)
        return REFERENCE_SHARE * capacity_per_s(config, step_times, self.problem.load)

    @property
    def _around(self) -> Surroundings:
        return Surroundings(
            model=self.problem.model, device=self.problem.deployment.device, num_devices=self.num_devices
        )

    def _best_of_stage(
        self, assessor: Assessor, stage: Effect, state: Assessment, choices: Sequence[Technique]
    ) -> tuple[Tried | None, list[Tried]]:
        tasks = [
            Trial(
                technique=technique,
                stage=stage,
                before=state,
                candidate=candidate,
                known=assessor.known(candidate),
                effort=self.effort,
                rate_per_s=assessor.rate_per_s,
            )
            for technique in choices
            if stage in technique.effects
            and (candidate := technique.apply(state.candidate, self._around)) is not None
            and room_for_kv(candidate, self.problem) > 0
        ]
        self.say(f"{len(tasks)} techniques for the {stage}, on {state.candidate.text}")
        trials = list(self.run_all(run_trial, tasks))
        for each in trials:
            assessor.remember(each.after)
        left_out = [each for each in trials if not each.is_taken]
        hopeful = sorted(
            (each for each in trials if each.is_taken),
            key=lambda each: (-(each.gain or 0.0), each.technique.name not in self.preferred),
        )
        for place, each in enumerate(hopeful):
            after = assessor.assess(each.after.candidate, state)
            loss = -(gain_of(Effect.GOODPUT, state, after) or 0.0)
            if loss > MAX_LOSS:
                left_out.append(replace(each, after=after, is_taken=False, why=f"costs {loss:.0%} of goodput"))
                continue
            why = f"gains less than {each.technique.name}"
            left_out += [replace(other, is_taken=False, why=why) for other in hopeful[place + 1 :]]
            return replace(each, after=after), left_out
        return None, left_out


def judged(technique: Technique, stage: Effect, before: Assessment, candidate: Candidate, assessor: Assessor) -> Tried:
    """Whether the technique pays. Its goodput is searched for only where all else speaks for it."""
    least = MIN_GAINS[technique.complexity]
    after = assessor.look(candidate)
    gain = gain_of(stage, before, after)
    asked = f"less than the {least:.0%} that its complexity asks for"
    why = ""
    if spoilt := _spoilt_stage(stage, before, after):
        why = f"makes the {spoilt} worse"
    elif stage is Effect.GOODPUT:
        if not assessor.keeps(candidate, (before.goodput_per_s or 0.0) * (1.0 + least)):
            why = f"gains {asked}"
        else:
            after = assessor.assess(candidate, before)
            gain = gain_of(stage, before, after)
            if gain is None or gain < least:
                why = f"gains {gain or 0.0:.0%}, {asked}"
    elif gain is None or gain < least:
        why = f"gains {'nothing that can be told' if gain is None else f'{gain:.0%}'}, {asked}"
    elif not assessor.keeps(candidate, (before.goodput_per_s or 0.0) * (1.0 - MAX_LOSS)):
        why = f"costs more than {MAX_LOSS:.0%} of goodput"
    is_taken = not why
    if is_taken:
        why = f"gains {gain or 0.0:.0%} of {stage}"
    return Tried.of(technique, stage, before, after, is_taken=is_taken, why=why)


def _spoilt_stage(stage: Effect, before: Assessment, after: Assessment) -> Effect | None:
    """The first earlier stage that loses more than it may."""
    for earlier in STAGES[: STAGES.index(stage)]:
        gain = gain_of(earlier, before, after)
        if gain is not None and gain < -MAX_LOSS:
            return earlier
    return None


def complexity_of(tried: Sequence[Tried]) -> Complexity:
    """The highest of those taken."""
    ranks = list(Complexity)
    return max((each.technique.complexity for each in tried), key=ranks.index, default=Complexity.LOW)
