"""Reference executors over tiny random models."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.execution.reference.loading import load_model_executor
from kvist.execution.reference.model_executor import ModelExecutor
from kvist.weights.checkpoint import open_checkpoint


@pytest.fixture
def tiny_executor(tiny_model) -> Callable[..., ModelExecutor]:
    """`tiny_executor("qwen3", "hf", kv_cache_dtype="float16")`."""

    def make(
        architecture: str = "llama",
        weight_format: str = "f32",
        *,
        num_blocks: int = 64,
        kv_cache_dtype: str = "auto",
        logprobs_mode: str = "raw_logprobs",
    ) -> ModelExecutor:
        config = EngineConfig(
            cache=CacheConfig(kv_cache_dtype=kv_cache_dtype), executor=ExecutorConfig(logprobs_mode=logprobs_mode)
        )
        checkpoint = open_checkpoint(tiny_model(architecture, weight_format))
        return load_model_executor(checkpoint, config, num_blocks=num_blocks)

    return make
