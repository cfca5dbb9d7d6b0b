"""Executors over tiny random models."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.execution.loading import load_model_executor
from kvist.execution.model_executor import ModelExecutor
from kvist.weights.checkpoint import open_checkpoint


@pytest.fixture
def tiny_executor(tiny_model) -> Callable[..., ModelExecutor]:
    """`tiny_executor("qwen3", "hf", kv_cache_dtype="float16")`. draft: architecture and format of a draft model."""

    def make(
        architecture: str = "llama",
        weight_format: str = "f32",
        *,
        executor: str = "reference",
        num_blocks: int = 96,
        num_threads: int = 2,
        max_num_batched_tokens: int = 256,
        kv_cache_dtype: str = "auto",
        attention_dtype: str = "float32",
        logprobs_mode: str = "raw_logprobs",
        draft: tuple[str, str] | None = None,
        isa: str = "auto",
    ) -> ModelExecutor:
        config = EngineConfig(
            cache=CacheConfig(kv_cache_dtype=kv_cache_dtype),
            scheduler=SchedulerConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=32),
            executor=ExecutorConfig(
                executor=executor,
                num_threads=num_threads,
                attention_dtype=attention_dtype,
                logprobs_mode=logprobs_mode,
                isa=isa,
            ),
        )
        checkpoint = open_checkpoint(tiny_model(architecture, weight_format))
        draft_checkpoint = None if draft is None else open_checkpoint(tiny_model(*draft))
        return load_model_executor(checkpoint, config, num_blocks=num_blocks, draft_checkpoint=draft_checkpoint)

    return make
