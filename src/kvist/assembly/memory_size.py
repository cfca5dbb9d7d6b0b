"""What an engine's memory is given to, as configured, on this machine."""

from __future__ import annotations

from dataclasses import replace

from kvist.config.engine_config import EngineConfig
from kvist.core.errors import ConfigError
from kvist.core.model_spec import ModelSpec
from kvist.execution.choice import choose_executor
from kvist.execution.memory_model import MemoryTable, memory_table
from kvist.weights.host_memory import free_memory_bytes


def size_memory(
    config: EngineConfig,
    spec: ModelSpec,
    *,
    max_num_batched_tokens: int,
    num_blocks: int | None = None,
    draft_spec: ModelSpec | None = None,
) -> MemoryTable:
    """The memory table of `config` on this machine; with `num_blocks` of KV if that has been decided already."""
    cache = config.cache
    if num_blocks is not None:
        cache = replace(cache, num_blocks=num_blocks, kv_cache_bytes=None, max_total_tokens=None)
    return memory_table(
        spec,
        cache,
        executor=choose_executor(config.executor.executor, spec),
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        free_bytes=free_memory_bytes(),
        draft=None if draft_spec is None else (draft_spec, choose_executor(config.executor.executor, draft_spec)),
    )


def max_model_len(config: EngineConfig, spec: ModelSpec, table: MemoryTable) -> int:
    """The longest request: as configured, or what the model was trained for and the pool holds."""
    asked = config.model.max_model_len
    if asked is None:
        return min(spec.max_position, table.num_kv_tokens)
    if asked > spec.max_position:
        raise ConfigError(
            f"--max-model-len {asked} exceeds the {spec.max_position} positions that the model was trained for"
        )
    if asked > table.num_kv_tokens:
        raise ConfigError(
            f"--max-model-len {asked} does not fit the KV pool of {table.num_kv_tokens} tokens "
            f"({table.num_blocks_by}). Set --kv-cache-bytes to {asked * table.kv_bytes_per_token} or more, "
            f"or --max-model-len to at most {table.num_kv_tokens}."
        )
    return asked
