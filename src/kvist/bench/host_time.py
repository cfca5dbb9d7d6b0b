"""What an engine takes for a step beside its executor: planning, taking in results, handing out events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvist.bench.loaded_model import LoadedModel
from kvist.bench.nonnegative import nonnegative_least_squares
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.clock import Clock
from kvist.core.request import NewRequest, RequestId, pack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.engine.engine_core import EngineCore
from kvist.engine.executor import Executor, StepHandle
from kvist.scheduler.scheduler import Scheduler

BATCHES = (1, 4, 16, 32)
PROMPT_TOKENS = 96
NUM_STEPS = 12


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds per step, per sequence in it, and per prompt token in it."""

    step_s: float
    sequence_s: float
    token_s: float


class TimedExecutor:
    """An executor that notes how long its own steps take."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self.seconds = 0.0

    @property
    def num_blocks(self) -> int:
        return self._executor.num_blocks

    def begin_step(self, plan: StepPlan) -> StepHandle:
        begun_s = self._clock.now_s()
        handle = self._executor.begin_step(plan)
        self.seconds += self._clock.now_s() - begun_s
        return handle

    def finish_step(self, handle: StepHandle) -> StepResult:
        begun_s = self._clock.now_s()
        result = self._executor.finish_step(handle)
        self.seconds += self._clock.now_s() - begun_s
        return result

    def close(self) -> None:
        """The executor underneath stays."""


def measure_host(loaded: LoadedModel, clock: Clock) -> HostTime:
    """Run short loads through an engine over `loaded` and look at what its steps take beside the executor."""
    rows: list[tuple[float, float, float]] = []
    seconds: list[float] = []
    for batch in BATCHES:
        prompt_steps, decode_steps = _one_load(loaded, clock, batch)
        for num_tokens, host_s in prompt_steps:
            rows.append((1.0, batch, num_tokens))
            seconds.append(host_s)
        # The shortest of equal steps: whatever else the machine did only adds time.
        rows.append((1.0, batch, 0.0))
        seconds.append(min(decode_steps))
    columns, target = np.asarray(rows), np.asarray(seconds)
    weights = 1.0 / np.maximum(target, 1e-6)
    step_s, sequence_s, token_s = nonnegative_least_squares(columns * weights[:, None], target * weights).tolist()
    return HostTime(step_s, sequence_s, token_s)


def _one_load(loaded: LoadedModel, clock: Clock, batch: int) -> tuple[Sequence[tuple[int, float]], list[float]]:
    """Prompt tokens and host time of steps with prompts; host times of steps that decode for all."""
    timed = TimedExecutor(loaded.executor, clock)
    cache = loaded.new_cache(enable_prefix_caching=False)
    budget = loaded.max_num_batched_tokens
    scheduler = Scheduler(
        SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max(batch, 1)),
        cache,
        block_size=loaded.block_size,
        max_num_batched_tokens=budget,
        max_model_len=loaded.max_model_len,
    )
    core = EngineCore(scheduler, timed)
    ids = [RequestId(f"host-time/{number}") for number in range(batch)]
    num_tokens = NUM_STEPS + -(-batch * PROMPT_TOKENS // budget)  # so that all decode together in the end
    for number, request_id in enumerate(ids):
        core.add_request(_request(request_id, number, num_tokens), clock.now_s())
    prompt_steps, decode_steps = [], []
    while core.has_unfinished_requests:
        begun_s, before_s = clock.now_s(), timed.seconds
        step = core.begin(begun_s)
        if step is None:
            break
        core.finish(step, clock.now_s(), 0.0)
        host_s = max(0.0, clock.now_s() - begun_s - (timed.seconds - before_s))
        num_prompt = step.plan.num_total_tokens - len(step.plan.request_ids)
        if num_prompt:
            prompt_steps.append((num_prompt, host_s))
        elif len(step.plan.request_ids) == batch:
            decode_steps.append(host_s)
    loaded.forget(ids)
    return prompt_steps, decode_steps


def _request(request_id: RequestId, number: int, num_tokens: int) -> NewRequest:
    tokens = [1 + (31 * number + i) % 97 for i in range(PROMPT_TOKENS)]
    return NewRequest(
        request_id=request_id,
        prompt_token_ids=pack_token_ids(tokens),
        sampling=SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True),
        arrival_time_s=0.0,
    )
