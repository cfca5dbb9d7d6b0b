"""Engines on which policies are compared: the loaded model in real time, or a model of step times in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from kvist.bench.load_run import LoadRun, LoadRunner, TargetsOf
from kvist.bench.loaded_model import LoadedModel
from kvist.bench.unloaded_latency import measured_latency, predicted_latency
from kvist.bench.virtual_run import VirtualLoadRunner, virtual_core
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.clock import VirtualClock
from kvist.costmodel.online_step_time import OnlineStepTimeModel
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.metrics.unloaded_latency import UnloadedLatency
from kvist.runtime.real_clock import RealClock
from kvist.workload.text_source import TextSource, read_sentences
from kvist.workload.trace_record import TextPart, TraceRecord

NUM_UNLOADED_REPEATS = 2
NUM_UNLOADED_TOKENS = 9  # of an answer whose time per token is measured
MAX_NUM_QUEUED = 1_000_000  # nobody is turned away: each policy gets the same requests


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy with the token budget of its steps."""

    policy: str
    token_budget: int

    @property
    def label(self) -> str:
        return f"{self.policy} {self.token_budget}"


class PolicyEngine(Protocol):
    """Runs a load under any variant, each time from an empty cache."""

    def play(self, variant: Variant, records: Sequence[TraceRecord], targets_of: TargetsOf | None) -> LoadRun: ...

    def unloaded(self, *, max_tokens: int) -> UnloadedLatency:
        """What requests of up to `max_tokens` take alone."""
        ...


class RealPolicyEngine:
    """scheduler: what all variants share. The model's own token budget is the largest that a variant may have."""

    def __init__(self, model: LoadedModel, scheduler: SchedulerConfig, *, num_blocks: int) -> None:
        self._model = model
        self._scheduler = replace(scheduler, max_num_queued_reqs=MAX_NUM_QUEUED)
        self._num_blocks = num_blocks
        self._clock = RealClock()
        self._serials = count()
        self._timed_steps: list[tuple[int, float]] = []
        tokenizer = model.tokenizer
        self._texts = TextSource(lambda text: tokenizer.encode(text, add_special_tokens=False), read_sentences())

    def with_blocks(self, num_blocks: int) -> RealPolicyEngine:
        """The same engine over another pool. One of the two runs at a time."""
        engine = copy(self)
        engine._num_blocks = num_blocks
        return engine

    def play(self, variant: Variant, records: Sequence[TraceRecord], targets_of: TargetsOf | None) -> LoadRun:
        config = replace(self._scheduler, policy=variant.policy, max_num_batched_tokens=variant.token_budget)
        core = self._model.new_core(
            self._model.new_cache(num_blocks=self._num_blocks),
            config,
            step_time_model=OnlineStepTimeModel(self._timed_steps),
        )
        runner = LoadRunner(core, self._clock, self._texts, name=f"run-{next(self._serials)}")
        run = runner.run(records, targets_of)
        self._model.forget(runner.request_ids)
        return run

    def unloaded(self, *, max_tokens: int) -> UnloadedLatency:
        budget = self._model.max_num_batched_tokens
        variant = Variant("chunked_prefill", budget)
        serials = count()

        def measure(num_prompt_tokens: int) -> tuple[float, float]:
            part = TextPart(f"unloaded/{next(serials)}", 0, num_prompt_tokens)
            record = TraceRecord(index=0, arrival_s=0.0, prompt=(part,), num_output_tokens=NUM_UNLOADED_TOKENS)
            times_s = self.play(variant, [record], None).requests[0].token_times_s
            return times_s[0], (times_s[-1] - times_s[0]) / (len(times_s) - 1)

        measure(16)  # touches the weights
        latency = measured_latency(
            measure, max_tokens=max_tokens, num_output_tokens=NUM_UNLOADED_TOKENS, num_repeats=NUM_UNLOADED_REPEATS
        )
        self._timed_steps = [(int(tokens), seconds) for tokens, seconds in latency.ttft if tokens <= budget]
        return latency


class VirtualPolicyEngine:
    """Steps take what `step_times` says; the scheduler has to learn that as in real time."""

    def __init__(
        self, step_times: StepTimeModel, scheduler: SchedulerConfig, *, num_blocks: int, max_token_budget: int
    ) -> None:
        self._step_times = step_times
        self._scheduler = replace(scheduler, max_num_queued_reqs=MAX_NUM_QUEUED)
        self._num_blocks = num_blocks
        self._max_token_budget = max_token_budget
        self._texts = TextSource(lambda text: [ord(letter) for letter in text], read_sentences())

    def play(self, variant: Variant, records: Sequence[TraceRecord], targets_of: TargetsOf | None) -> LoadRun:
        clock = VirtualClock()
        config = replace(self._scheduler, policy=variant.policy, max_num_batched_tokens=variant.token_budget)
        core = virtual_core(config, clock, self._step_times, num_blocks=self._num_blocks)
        return VirtualLoadRunner(core, clock, self._texts, name="virtual").run(records, targets_of)

    def unloaded(self, *, max_tokens: int) -> UnloadedLatency:
        return predicted_latency(self._step_times, max_tokens=max_tokens, token_budget=self._max_token_budget)
