"""Loads a model and puts an engine together around it. Runs in the engine's own thread or process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvist.assembly.memory_size import max_model_len, size_memory
from kvist.assembly.speculation import make_speculator, open_draft_checkpoint
from kvist.config.cache_folder import cache_folder
from kvist.config.engine_config import EngineConfig
from kvist.core.clock import Clock
from kvist.core.errors import ConfigError
from kvist.core.version import __version__
from kvist.costmodel.online_step_time import OnlineStepTimeModel
from kvist.engine.engine_core import EngineCore
from kvist.execution.loading import load_model_executor
from kvist.execution.memory_model import MemoryTable
from kvist.execution.model_executor import ModelExecutor
from kvist.kvcache.kv_cache import KVCache
from kvist.models.registry import read_model
from kvist.runtime.built_engine import BuiltEngine, ReportPhase
from kvist.runtime.engine_client import EngineInfo
from kvist.runtime.operation_sampling import SampledExecutor
from kvist.runtime.real_clock import RealClock
from kvist.runtime.start_phases import StartPhases
from kvist.runtime.step_timing import timed_steps, timing_key
from kvist.runtime.step_tracer import StepTracer
from kvist.scheduler.budget import choose_token_budget
from kvist.scheduler.scheduler import Scheduler
from kvist.weights.checkpoint import Checkpoint, open_checkpoint


def build_engine(config: EngineConfig, report: ReportPhase) -> BuiltEngine:
    """Load the model that `config.model.model` names by path and put an engine together around it."""
    clock = RealClock()
    phases = StartPhases(clock, report)
    phases.begin("open checkpoint")
    compares_vocabularies = config.speculation.speculative_model is not None
    checkpoint = open_checkpoint(Path(config.model.model), with_vocabulary=compares_vocabularies)
    spec = read_model(checkpoint).spec
    draft = open_draft_checkpoint(config.speculation, checkpoint, config.model.tokenizer)
    draft_spec = None if draft is None else read_model(draft).spec
    table = size_memory(
        config, spec, max_num_batched_tokens=config.scheduler.max_num_batched_tokens or 0, draft_spec=draft_spec
    )
    longest = max_model_len(config, spec, table)
    phases.begin("load weights")
    executor = _load_executor(config, checkpoint, draft, table, phases)
    token_budget = config.scheduler.max_num_batched_tokens
    timed: list[tuple[int, float]] = []
    if token_budget is None:
        phases.begin("time steps")
        timed = _timed_steps(config, checkpoint, executor, clock, longest)
        token_budget = choose_token_budget(timed)
    executor.resize(token_budget)
    if config.cache.preallocate_kv_cache:  # only now, for it would disturb the timed steps
        executor.preallocate()
    phases.begin("lay out cache")
    table = size_memory(
        config, spec, max_num_batched_tokens=token_budget, num_blocks=table.num_blocks, draft_spec=draft_spec
    )
    scheduler = _make_scheduler(config, table, timed, token_budget=token_budget, longest=longest)
    phases.end()
    info = EngineInfo(
        max_model_len=longest,
        vocab_size=spec.vocab_size,
        block_size=table.block_size,
        num_blocks=table.num_blocks,
        token_budget=token_budget,
        max_num_seqs=config.scheduler.max_num_seqs,
        kv_cache_bytes=table.kv_pool_bytes,
        weight_bytes=executor.weight_bytes,
        workspace_bytes=executor.workspace_bytes or table.workspace_bytes,
        start_phases_s=phases.durations_s,
    )
    return _built(config, scheduler, executor, info, clock)


def _load_executor(
    config: EngineConfig, checkpoint: Checkpoint, draft: Checkpoint | None, table: MemoryTable, phases: StartPhases
) -> ModelExecutor:
    """Raises ConfigError where the memory that was free is not to be had after all."""
    try:
        return load_model_executor(
            checkpoint, config, num_blocks=table.num_blocks, draft_checkpoint=draft, progress=phases.progress
        )
    except MemoryError as error:
        raise ConfigError(
            f"no memory for {table.weight_bytes} bytes of weights and a KV pool of {table.kv_pool_bytes} bytes "
            f"({table.num_blocks_by}): {error}. Lower --kv-cache-bytes, --max-num-seqs "
            "or --max-num-batched-tokens, or raise the limit on memory"
        ) from error


def _make_scheduler(
    config: EngineConfig, table: MemoryTable, timed: Sequence[tuple[int, float]], *, token_budget: int, longest: int
) -> Scheduler:
    """timed: tokens and seconds of steps. longest: tokens of a request at most."""
    kv_cache = KVCache(
        num_blocks=table.num_blocks,
        block_size=config.cache.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        eviction_policy=config.cache.eviction_policy,
    )
    return Scheduler(
        config.scheduler,
        kv_cache,
        block_size=config.cache.block_size,
        max_num_batched_tokens=token_budget,
        max_model_len=longest,
        speculator=make_speculator(config.speculation),
        step_time_model=OnlineStepTimeModel(timed),
    )


def _built(
    config: EngineConfig, scheduler: Scheduler, executor: ModelExecutor, info: EngineInfo, clock: Clock
) -> BuiltEngine:
    """Engine and tracer over one executor; the tracer has begun if no one is to ask for it first."""
    sampled = SampledExecutor(executor)
    tracer = StepTracer(config.trace, sampled, _trace_facts(config, executor, info))
    if config.trace.trace is not None and not config.trace.trace_on_demand:
        tracer.start(clock.now_s())
    core = EngineCore(scheduler, sampled)

    def close() -> None:
        tracer.close()
        core.close()

    return BuiltEngine(core=core, info=info, close=close, tracer=tracer)


def _trace_facts(config: EngineConfig, executor: ModelExecutor, info: EngineInfo) -> dict[str, str]:
    return {
        "kvist": __version__,
        "model": Path(config.model.model).name,
        "executor": executor.description,
        "policy": config.scheduler.policy,
        "token budget": str(info.token_budget),
        "KV blocks": str(info.num_blocks),
    }


def _timed_steps(
    config: EngineConfig, checkpoint: Checkpoint, executor: ModelExecutor, clock: Clock, max_model_len: int
) -> list[tuple[int, float]]:
    """Tokens and seconds of steps of growing size on this machine; see runtime.step_timing."""
    key = timing_key((checkpoint.identity, executor.description, config.cache.kv_cache_dtype))
    timing_file = cache_folder() / "timing" / key
    points = timed_steps(executor, clock, timing_file, block_size=config.cache.block_size, max_tokens=max_model_len)
    return [(point.num_tokens, point.step_time_s) for point in points]
