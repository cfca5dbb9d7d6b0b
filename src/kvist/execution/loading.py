"""Builds a ready ModelExecutor from a checkpoint and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvist.config.cache_folder import cache_folder
from kvist.config.engine_config import EngineConfig
from kvist.core.errors import ConfigError
from kvist.execution.choice import choose_executor
from kvist.execution.draft_model import DraftModel
from kvist.execution.kv_dtype import kv_dtype
from kvist.execution.kv_storage import KVStorage
from kvist.execution.model_executor import ModelExecutor
from kvist.execution.reference.load_weights import Progress, load_weights
from kvist.execution.reference.runner import NumpyRunner
from kvist.execution.runner import Runner
from kvist.execution.sampler import Sampler
from kvist.execution.threads import MatrixProducts, granted_cores
from kvist.models.registry import Model, read_model
from kvist.weights.checkpoint import Checkpoint
from kvist.weights.host_memory import free_memory_bytes

if TYPE_CHECKING:
    from kvist.execution.native.plan_description import PlanDescription

COPIED_SHARE = 0.25  # of free memory, up to which packed weights are copied into huge pages
LARGEST_TIMED_STEP = 2048  # tokens: what a step may hold until its budget has been measured


def load_model_executor(
    checkpoint: Checkpoint,
    config: EngineConfig,
    *,
    num_blocks: int,
    draft_checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> ModelExecutor:
    """Read all weights (calling `progress` with bytes done and in all) and lay out the KV pool.

    draft_checkpoint: a model with the same vocabulary, to draft tokens; its KV pool has as many blocks.
    Raises CheckpointError or UnsupportedModelError for what `read_model` refuses, ConfigError for an executor that
    cannot be had.
    """
    model = read_model(checkpoint)
    sampler = Sampler(processed_logprobs=config.executor.logprobs_mode == "processed_logprobs")
    runner = _load_runner(checkpoint, model, config, num_blocks, progress)
    draft_model = None
    if draft_checkpoint is not None:
        drafting = read_model(draft_checkpoint)
        draft_model = DraftModel(
            _load_runner(draft_checkpoint, drafting, config, num_blocks, progress),
            sampler,
            max_num_tokens=config.scheduler.max_num_batched_tokens or LARGEST_TIMED_STEP,
            num_token_ids=min(model.spec.vocab_size, drafting.spec.vocab_size),
            max_position=drafting.spec.max_position,
        )
    return ModelExecutor(runner, sampler, engine_seed=config.model.seed, draft_model=draft_model)


def _load_runner(
    checkpoint: Checkpoint, model: Model, config: EngineConfig, num_blocks: int, progress: Progress | None
) -> Runner:
    make = _native_runner if choose_executor(config.executor.executor, model.spec) == "native" else _numpy_runner
    if make is _numpy_runner and config.executor.isa != "auto":
        raise ConfigError(
            f"--isa {config.executor.isa} is for the native executor; the reference executor has no choice"
        )
    return make(checkpoint, model, config, num_blocks, progress)


def _numpy_runner(
    checkpoint: Checkpoint, model: Model, config: EngineConfig, num_blocks: int, progress: Progress | None
) -> Runner:
    if config.executor.attention_dtype != "float32":
        raise ConfigError("the reference executor attends in float32; leave --attention-dtype out")
    kv = KVStorage(
        model.spec,
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        dtype=kv_dtype(config.cache.kv_cache_dtype, "reference"),
    )
    return NumpyRunner(
        model, load_weights(checkpoint, model, progress), kv, MatrixProducts(config.executor.num_threads)
    )


def _native_runner(
    checkpoint: Checkpoint, model: Model, config: EngineConfig, num_blocks: int, progress: Progress | None
) -> Runner:
    # Here, because an environment without the compiled kernels must still be able to import this module.
    from kvist.execution.native.huge_pages import has_huge_pages
    from kvist.execution.native.load_weights import load_packed_weights
    from kvist.execution.native.runner import NativeRunner
    from kvist.execution.native.self_test import named_isa
    from kvist.execution.native.weight_cache import WeightCache

    max_num_tokens = config.scheduler.max_num_batched_tokens or LARGEST_TIMED_STEP
    num_threads = config.executor.num_threads or granted_cores()
    cache = WeightCache(
        cache_folder() / "weights",
        config.executor.weight_cache_bytes,
        verify=config.executor.verify,
        max_copied_bytes=int(COPIED_SHARE * free_memory_bytes()) if has_huge_pages() else 0,
    )
    isa = named_isa(config.executor.isa)
    return NativeRunner(
        model,
        load_packed_weights(checkpoint, model, progress, num_threads=num_threads, cache=cache),
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        dtype=kv_dtype(config.cache.kv_cache_dtype, "native", isa=isa, head_dim=model.spec.head_dim),
        has_integer_attention=_has_integer_attention(config),
        max_num_tokens=max_num_tokens,
        max_num_rows=config.scheduler.max_num_seqs,
        num_threads=num_threads,
        isa=isa,
    )


def _has_integer_attention(config: EngineConfig) -> bool:
    if config.executor.attention_dtype != "int8":
        return False
    if not kv_dtype(config.cache.kv_cache_dtype, "native").is_scaled:
        raise ConfigError("--attention-dtype int8 multiplies int8 keys and values; add --kv-cache-dtype int8")
    return True


def describe_plan(checkpoint: Checkpoint, config: EngineConfig, *, max_num_tokens: int) -> PlanDescription:
    """The plan that the native executor would record for steps of up to `max_num_tokens`. Reads no weights.

    Raises ConfigError where the native executor cannot be had.
    """
    model = read_model(checkpoint)
    choose_executor("native", model.spec)
    from kvist.execution.native.hollow_weights import hollow_weights
    from kvist.execution.native.runner import NativeRunner
    from kvist.execution.native.self_test import named_isa

    isa = named_isa(config.executor.isa)
    runner = NativeRunner(
        model,
        hollow_weights(checkpoint, model),
        num_blocks=1,
        block_size=config.cache.block_size,
        dtype=kv_dtype(config.cache.kv_cache_dtype, "native", isa=isa, head_dim=model.spec.head_dim),
        has_integer_attention=_has_integer_attention(config),
        max_num_tokens=max_num_tokens,
        max_num_rows=config.scheduler.max_num_seqs,
        num_threads=config.executor.num_threads or granted_cores(),
        isa=isa,
    )
    description = runner.describe()
    runner.close()
    return description
