"""What one executor makes of plain steps: the speeds that formats and shapes are compared by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvist.assembly.memory_size import size_memory
from kvist.bench.step_timer import Chunks, StepTimer
from kvist.config.engine_config import EngineConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.execution.loading import load_model_executor
from kvist.execution.model_executor import ModelExecutor
from kvist.models.registry import read_model
from kvist.repro.setting import ReproSetting
from kvist.runtime.real_clock import RealClock
from kvist.weights.checkpoint import Checkpoint

MAX_STEP_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpeeds:
    """Tokens per second: a prompt, one stream, a batch of streams; each the best of several steps."""

    prefill: float
    decode: float
    batch_decode: float


def load_executor(
    setting: ReproSetting, checkpoint: Checkpoint, *, num_kv_tokens: int, kv_cache_dtype: str | None = None
) -> tuple[ModelExecutor, int]:
    """An executor of `checkpoint`, and the bytes of K and V per token. Packed weights are not kept on disk."""
    cache = setting.cache if kv_cache_dtype is None else replace(setting.cache, kv_cache_dtype=kv_cache_dtype)
    config = EngineConfig(
        model=setting.model,
        cache=cache,
        executor=replace(setting.executor, weight_cache_bytes=0),
        scheduler=SchedulerConfig(max_num_batched_tokens=MAX_STEP_TOKENS, max_num_seqs=64),
    )
    num_blocks = -(-num_kv_tokens // cache.block_size) + 1
    table = size_memory(
        config, read_model(checkpoint).spec, max_num_batched_tokens=MAX_STEP_TOKENS, num_blocks=num_blocks
    )
    return load_model_executor(checkpoint, config, num_blocks=num_blocks), table.kv_bytes_per_token


def measure_speeds(
    executors: Mapping[str, ModelExecutor],
    block_size: int,
    *,
    prompt_tokens: int,
    context: int,
    batch: int,
    repeats: int,
) -> dict[str, StepSpeeds]:
    """Steps: a prompt of `prompt_tokens`; one decode and `batch` decodes after `context` tokens each.

    The executors take turns in each of the `repeats` rounds: what else the machine does then hits all of them.
    """
    clock = RealClock()
    timers = {name: StepTimer(executor, clock, block_size=block_size) for name, executor in executors.items()}
    steps: Mapping[str, Chunks] = {
        "prefill": [(prompt_tokens, 0)],
        "decode": [(1, context)],
        "batch": [(1, context)] * batch,
    }
    best: dict[str, dict[str, float]] = {name: {} for name in timers}
    for _ in range(repeats):
        for name, timer in timers.items():
            for step, time_s in timer.best_times_s(steps, repeats=2).items():
                best[name][step] = min(time_s, best[name].get(step, time_s))
    return {
        name: StepSpeeds(
            prefill=prompt_tokens / times["prefill"], decode=1.0 / times["decode"], batch_decode=batch / times["batch"]
        )
        for name, times in best.items()
    }
