"""A model's weights and KV bytes, loaded once, over which engines of any configuration run one after the other.

What differs between two runs is then their configuration alone: not where the weights lie in memory, and not what the
machine did in the minutes between two starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from kvist.assembly.memory_size import size_memory
from kvist.assembly.speculation import open_draft_checkpoint
from kvist.config.cache_folder import cache_folder
from kvist.config.engine_config import EngineConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.model_spec import ModelSpec
from kvist.core.request import RequestId
from kvist.costmodel.step_time_model import LearningStepTimeModel
from kvist.engine.engine_core import EngineCore
from kvist.engine.lone_step import run_idle_step
from kvist.execution.loading import load_model_executor
from kvist.execution.model_executor import ModelExecutor
from kvist.kvcache.kv_cache import KVCache
from kvist.models.registry import read_model
from kvist.scheduler.drafting import Speculator
from kvist.scheduler.scheduler import Scheduler
from kvist.tokenization.loading import load_tokenizer
from kvist.tokenization.tokenizer import Tokenizer
from kvist.weights.checkpoint import Checkpoint, open_checkpoint


@dataclass(slots=True, eq=False)
class LoadedModel:
    """See the module. `config` is what it was loaded with: the largest step, pool and number of requests."""

    config: EngineConfig
    checkpoint: Checkpoint
    spec: ModelSpec
    executor: ModelExecutor
    tokenizer: Tokenizer
    kv_bytes_per_token: int

    @property
    def block_size(self) -> int:
        return self.config.cache.block_size

    @property
    def num_blocks(self) -> int:
        return self.executor.num_blocks

    def new_cache(self, *, num_blocks: int | None = None, enable_prefix_caching: bool = True) -> KVCache:
        """An empty cache over the first `num_blocks` blocks (None: all)."""
        return KVCache(
            num_blocks=self.num_blocks if num_blocks is None else min(num_blocks, self.num_blocks),
            block_size=self.block_size,
            enable_prefix_caching=enable_prefix_caching,
            eviction_policy=self.config.cache.eviction_policy,
        )

    def new_core(
        self,
        kv_cache: KVCache,
        scheduler: SchedulerConfig,
        speculator: Speculator | None = None,
        *,
        step_time_model: LearningStepTimeModel | None = None,
    ) -> EngineCore:
        """An engine over `kv_cache`. One at a time: they share the KV bytes. Steps up to the size it was loaded with.

        speculator: may have learned in an engine before; one of a draft model only if the model was loaded with it.
        """
        token_budget = scheduler.max_num_batched_tokens or self.max_num_batched_tokens
        return EngineCore(
            Scheduler(
                scheduler,
                kv_cache,
                block_size=self.block_size,
                max_num_batched_tokens=token_budget,
                max_model_len=self.max_model_len,
                speculator=speculator,
                step_time_model=step_time_model,
            ),
            self.executor,
        )

    @property
    def max_num_batched_tokens(self) -> int:
        return self.config.scheduler.max_num_batched_tokens or 0

    @property
    def max_model_len(self) -> int:
        return self.config.model.max_model_len or self.spec.max_position

    def forget(self, request_ids: Iterable[RequestId]) -> None:
        """Let the executor forget requests of an engine that takes no more steps."""
        run_idle_step(self.executor, dropped_request_ids=request_ids)

    def close(self) -> None:
        self.executor.close()


def load_model(config: EngineConfig, path: Path, *, num_blocks: int) -> LoadedModel:
    """Load the model at `path` with a pool of `num_blocks`; memory is taken as blocks are first used.

    config: must say `max_num_batched_tokens`; its name of the model is not looked at. Raises KvistError for a model
    that cannot be read.
    """
    checkpoint = open_checkpoint(path)
    spec = read_model(checkpoint).spec
    draft = open_draft_checkpoint(config.speculation, checkpoint, config.model.tokenizer)
    table = size_memory(
        replace(config, cache=replace(config.cache, num_blocks=None, kv_cache_bytes=None, max_total_tokens=None)),
        spec,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens or 0,
        num_blocks=num_blocks,
        draft_spec=None if draft is None else read_model(draft).spec,
    )
    return LoadedModel(
        config=config,
        checkpoint=checkpoint,
        spec=spec,
        executor=load_model_executor(checkpoint, config, num_blocks=num_blocks, draft_checkpoint=draft),
        tokenizer=load_tokenizer(checkpoint, path=config.model.tokenizer, cache_folder=cache_folder()),
        kv_bytes_per_token=table.kv_bytes_per_token,
    )
