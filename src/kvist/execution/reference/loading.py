"""Builds a ready ModelExecutor from a checkpoint and the configuration."""

from __future__ import annotations

from kvist.config.engine_config import EngineConfig
from kvist.execution.kv_dtype import kv_dtype
from kvist.execution.reference.kv_storage import KVStorage
from kvist.execution.reference.load_weights import Progress, load_weights
from kvist.execution.reference.model_executor import ModelExecutor
from kvist.execution.sampler import Sampler
from kvist.execution.threads import MatrixProducts
from kvist.models.registry import read_model
from kvist.weights.checkpoint import Checkpoint


def load_model_executor(
    checkpoint: Checkpoint, config: EngineConfig, *, num_blocks: int, progress: Progress | None = None
) -> ModelExecutor:
    """Read all weights (calling `progress` with bytes done and in all) and lay out the KV pool.

    Raises CheckpointError or UnsupportedModelError for what `read_model` refuses.
    """
    model = read_model(checkpoint)
    return ModelExecutor(
        model,
        load_weights(checkpoint, model, progress),
        KVStorage(
            model.spec,
            num_blocks=num_blocks,
            block_size=config.cache.block_size,
            dtype=kv_dtype(config.cache.kv_cache_dtype),
        ),
        Sampler(processed_logprobs=config.executor.logprobs_mode == "processed_logprobs"),
        MatrixProducts(config.executor.num_threads),
        engine_seed=config.model.seed,
    )
