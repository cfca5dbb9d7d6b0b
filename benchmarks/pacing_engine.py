"""An engine that computes nothing: real scheduler, cache and step loop over an executor that only waits.

`python -m benchmarks.pacing_engine SOCKET` runs it as an engine process. Every output is the same English text.
"""

from __future__ import annotations

import sys
import time

from kvist.config.engine_config import EngineConfig
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.engine.engine_core import EngineCore
from kvist.kvcache.kv_cache import KVCache
from kvist.runtime.built_engine import BuiltEngine, ReportPhase
from kvist.runtime.engine_client import EngineInfo
from kvist.runtime.engine_process import run_engine_process
from kvist.runtime.real_clock import RealClock
from kvist.scheduler.scheduler import Scheduler

STEP_TIME_S = 0.02
MAX_MODEL_LEN = 2048
NUM_BLOCKS = 8192


class PacingExecutor:
    """Takes STEP_TIME_S for each step, asleep, and samples the next token of `output_token_ids` for every row."""

    def __init__(self, output_token_ids: list[int]) -> None:
        self._output = output_token_ids

    @property
    def num_blocks(self) -> int:
        return NUM_BLOCKS

    def begin_step(self, plan: StepPlan) -> tuple[StepResult, float]:
        token = (self._output[plan.step_id % len(self._output)],)
        sampled = [token if samples else () for samples in plan.samples]
        return StepResult(step_id=plan.step_id, sampled_token_ids=list(sampled)), time.monotonic() + STEP_TIME_S

    def finish_step(self, handle: tuple[StepResult, float]) -> StepResult:
        result, end_s = handle
        time.sleep(max(0.0, end_s - time.monotonic()))
        return result

    def close(self) -> None:
        """Nothing to free."""


def build_pacing_engine(config: EngineConfig, report: ReportPhase) -> BuiltEngine:
    """`config.model.model` holds the output's token ids, comma-separated."""
    del report
    block_size = config.cache.block_size
    executor = PacingExecutor([int(token) for token in config.model.model.split(",")])
    scheduler = Scheduler(
        config.scheduler,
        KVCache(num_blocks=NUM_BLOCKS, block_size=block_size),
        block_size=block_size,
        max_num_batched_tokens=512,
        max_model_len=MAX_MODEL_LEN,
    )
    core = EngineCore(scheduler, executor)
    info = EngineInfo(
        max_model_len=MAX_MODEL_LEN,
        vocab_size=1 << 20,
        block_size=block_size,
        num_blocks=NUM_BLOCKS,
        token_budget=512,
        max_num_seqs=config.scheduler.max_num_seqs,
        kv_cache_bytes=0,
        weight_bytes=0,
        workspace_bytes=0,
        start_phases_s={},
    )
    return BuiltEngine(core=core, info=info, close=core.close)


if __name__ == "__main__":
    sys.exit(run_engine_process(sys.argv[1], build_pacing_engine, RealClock()))
