"""A whole engine without a model: the real scheduler and cache over the simulated executor, at real time.

`python -m tests.fakes.simulated_engine SOCKET` runs it as an engine process. The model's name says what it does:
"simulated" serves; "broken" does not start; "mortal" ends its process as soon as it is ready.
"""

from __future__ import annotations

import os
import sys
import time

from kvist.config.engine_config import EngineConfig
from kvist.core.errors import CheckpointError
from kvist.core.request import NewRequest
from kvist.core.request_events import RequestEvent
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.engine.engine_core import EngineCore
from kvist.kvcache.kv_cache import KVCache
from kvist.metrics.step_record import OperationTime
from kvist.runtime.built_engine import BuiltEngine, ReportPhase
from kvist.runtime.engine_client import EngineInfo
from kvist.runtime.engine_process import run_engine_process
from kvist.runtime.messages import StartPhase
from kvist.runtime.operation_sampling import SampledExecutor
from kvist.runtime.real_clock import RealClock
from kvist.runtime.step_tracer import StepTracer
from kvist.scheduler.scheduler import Scheduler
from kvist.simulator.simulated_executor import SimulatedExecutor, SimulatedStep, hashed_token, linear_duration

VOCAB_SIZE = 300
FAILING_TOKEN = 13  # a prompt that is this token alone makes its step raise
CRASHING_TOKEN = 14  # and this one the step loop itself


class CrashingCore(EngineCore):
    """Raises where nothing should, when it is told to."""

    def add_request(self, new: NewRequest, now: float) -> list[RequestEvent]:
        if new.prompt_token_ids == CRASHING_TOKEN.to_bytes(4, "little"):
            raise RuntimeError("a bug in the scheduler")
        return super().add_request(new, now)


class PacedExecutor:
    """A simulated executor whose steps take their time."""

    def __init__(self, inner: SimulatedExecutor) -> None:
        self._inner = inner

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    def begin_step(self, plan: StepPlan) -> SimulatedStep:
        for data in plan.new_requests:
            if data.token_ids == FAILING_TOKEN.to_bytes(4, "little"):
                self._inner.begin_step(plan)
                raise RuntimeError("a step that was made to fail")
        return self._inner.begin_step(plan)

    def finish_step(self, handle: SimulatedStep) -> StepResult:
        time.sleep(handle.duration_s)
        return self._inner.finish_step(handle)

    def time_next_step(self) -> None:
        pass

    def take_operation_times(self) -> list[OperationTime]:
        return []

    def close(self) -> None:
        self._inner.close()


def build_simulated_engine(config: EngineConfig, report: ReportPhase) -> BuiltEngine:
    """As assembly's build_engine, without a model."""
    report(StartPhase("simulate"))
    if config.model.model == "broken":
        raise CheckpointError("the file is damaged")
    num_blocks, block_size = config.cache.num_blocks or 512, config.cache.block_size
    executor = SimulatedExecutor(
        num_blocks=num_blocks,
        block_size=block_size,
        duration=linear_duration(per_step_s=0.001, per_token_s=0.0),
        sample_token=hashed_token(VOCAB_SIZE),
        check_plans=config.scheduler.check_invariants,
    )
    kv_cache = KVCache(
        num_blocks=num_blocks,
        block_size=block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        eviction_policy=config.cache.eviction_policy,
    )
    max_model_len = config.model.max_model_len or 8000
    token_budget = config.scheduler.max_num_batched_tokens or 256
    scheduler = Scheduler(
        config.scheduler,
        kv_cache,
        block_size=block_size,
        max_num_batched_tokens=token_budget,
        max_model_len=max_model_len,
    )
    sampled = SampledExecutor(PacedExecutor(executor))
    core = CrashingCore(scheduler, sampled)
    tracer = StepTracer(config.trace, sampled, {"model": "simulated"})
    if config.trace.trace is not None and not config.trace.trace_on_demand:
        tracer.start(RealClock().now_s())
    info = EngineInfo(
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        block_size=block_size,
        num_blocks=num_blocks,
        token_budget=token_budget,
        max_num_seqs=config.scheduler.max_num_seqs,
        kv_cache_bytes=0,
        weight_bytes=0,
        workspace_bytes=0,
        start_phases_s={"simulate": 0.0},
    )
    return BuiltEngine(core=core, info=info, close=tracer.close, tracer=tracer)


def build_mortal_engine(config: EngineConfig, report: ReportPhase) -> BuiltEngine:
    """An engine whose process ends by itself."""
    engine = build_simulated_engine(config, report)
    if config.model.model == "mortal":
        os._exit(3)
    return engine


if __name__ == "__main__":
    sys.exit(run_engine_process(sys.argv[1], build_mortal_engine, RealClock()))
