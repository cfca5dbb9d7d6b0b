"""Replays a load under a virtual clock: the engine as it serves, but for steps whose time a model states."""

from __future__ import annotations

from kvist.bench.load_run import LoadRunner
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.clock import VirtualClock
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.costmodel.step_time_model import LearningStepTimeModel, StepTimeModel
from kvist.costmodel.step_work import work_of_plan
from kvist.engine.engine_core import EngineCore
from kvist.kvcache.kv_cache import KVCache
from kvist.scheduler.scheduler import Scheduler
from kvist.simulator.simulated_executor import SimulatedExecutor, SimulatedStep

BLOCK_SIZE = 16
MAX_MODEL_LEN = 1 << 20


class VirtualExecutor:
    """An executor whose steps let `clock` pass as long as `step_times` says."""

    def __init__(self, clock: VirtualClock, step_times: StepTimeModel, num_blocks: int) -> None:
        self._clock = clock
        self._inner = SimulatedExecutor(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            duration=lambda plan: step_times.predict_s(work_of_plan(plan)),
            check_plans=False,
        )

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    def begin_step(self, plan: StepPlan) -> SimulatedStep:
        return self._inner.begin_step(plan)

    def finish_step(self, handle: SimulatedStep) -> StepResult:
        self._clock.advance_to(self._clock.now_s() + handle.duration_s)
        return self._inner.finish_step(handle)

    def close(self) -> None:
        self._inner.close()


class VirtualLoadRunner(LoadRunner):
    """A LoadRunner that does not wait for its virtual clock, but moves it."""

    _clock: VirtualClock

    def _sleep(self, seconds: float) -> None:
        self._clock.advance_to(self._clock.now_s() + seconds)


def virtual_core(
    scheduler: SchedulerConfig,
    clock: VirtualClock,
    step_times: StepTimeModel,
    *,
    num_blocks: int,
    learned: LearningStepTimeModel | None = None,
) -> EngineCore:
    """An engine in virtual time. learned: what its scheduler believes of step times; None: it starts to learn.

    The configuration must name the token budget.
    """
    if scheduler.max_num_batched_tokens is None:
        raise ValueError("a virtual engine cannot time steps to choose its token budget")
    core_scheduler = Scheduler(
        scheduler,
        KVCache(num_blocks=num_blocks, block_size=BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        step_time_model=learned,
    )
    return EngineCore(core_scheduler, VirtualExecutor(clock, step_times, num_blocks))
