"""What is planned is what is served: one trace through the serving loop and through a simulated replica.

The serving loop is the real one; only its clock, its inbox and its executor are played: a step takes the time that the
step-time model says, and what arrives meanwhile waits in the inbox.
"""

from __future__ import annotations

import heapq
import queue
from collections.abc import Sequence

import msgspec
import pytest
from tests.fakes.cluster_world import BLOCK_SIZE, STEP_TIME, chats, cluster, group

from kvist.config.cluster_config import ClusterConfig
from kvist.config.scheduler_config import POLICIES, QUEUE_ORDERS, SchedulerConfig
from kvist.core.request import NewRequest, RequestId
from kvist.core.request_events import Finished
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import StepPlan
from kvist.core.step_result import StepResult
from kvist.engine.engine_core import EngineCore
from kvist.kvcache.kv_cache import KVCache
from kvist.runtime.messages import Command, Shutdown, Submit, Turn
from kvist.runtime.real_time_driver import RealTimeDriver
from kvist.scheduler.scheduler import Scheduler
from kvist.simulator.cluster_simulation import ClusterSimulation
from kvist.simulator.simulated_replica import SimulatedReplica
from kvist.simulator.timed_executor import TimedExecutor, TimedStep
from kvist.simulator.trace_prompts import TracePrompts
from kvist.workload.trace_record import TraceRecord

NS = 1_000_000_000


class PlayedTime(TimedExecutor):
    """Clock, inbox and executor of a serving loop in which waiting costs nothing."""

    def __init__(self, records: Sequence[TraceRecord], num_blocks: int) -> None:
        super().__init__(num_blocks=num_blocks, step_time=STEP_TIME)
        self.now_ns = 0
        self.plans: list[StepPlan] = []
        self._records = records
        self._prompts = TracePrompts(records)
        self._due = [(round(r.arrival_s * NS), r.index) for r in records if r.after is None]
        heapq.heapify(self._due)
        self._num_open = len(records)

    def now_s(self) -> float:
        return self.now_ns / NS

    def begin_step(self, plan: StepPlan) -> TimedStep:
        self.plans.append(plan)
        return super().begin_step(plan)

    def finish_step(self, handle: TimedStep) -> StepResult:
        self.now_ns += handle.duration_ns
        return super().finish_step(handle)

    def emit(self, turn: Turn) -> None:
        for event in turn.batch.events if turn.batch else ():
            if isinstance(event, Finished):
                self._num_open -= 1
                for record in self._records:
                    if record.after == int(event.request_id):
                        heapq.heappush(self._due, (self.now_ns + round(record.arrival_s * NS), record.index))

    def get_nowait(self) -> Command:
        if not self._due or self._due[0][0] > self.now_ns:
            raise queue.Empty
        return Submit(self._request(heapq.heappop(self._due)[1]))

    def get(self, timeout: float) -> Command:
        """The loop is idle: the next arrival, however long that takes."""
        if not self._num_open:
            return Shutdown()
        self.now_ns = max(self.now_ns, self._due[0][0])
        return self.get_nowait()

    def _request(self, index: int) -> NewRequest:
        record = self._records[index]
        return NewRequest(
            request_id=RequestId(str(index)),
            prompt_token_ids=self._prompts.prompt(record),
            sampling=SamplingParams(max_tokens=record.num_output_tokens, ignore_eos=True, seed=index),
            arrival_time_s=self.now_ns / NS,
        )


class RecordedSimulation(ClusterSimulation):
    """Keeps every plan."""

    plans: list[StepPlan]

    def on_step(self, replica: SimulatedReplica, plan: StepPlan, work: object, *, start_ns: int, end_ns: int) -> None:
        self.plans.append(plan)
        super().on_step(replica, plan, work, start_ns=start_ns, end_ns=end_ns)  # type: ignore[arg-type]


def served_plans(config: ClusterConfig, records: Sequence[TraceRecord]) -> list[StepPlan]:
    only = config.groups[0]
    num_blocks = only.kv_cache_tokens // BLOCK_SIZE
    played = PlayedTime(records, num_blocks)
    scheduler = Scheduler(
        SchedulerConfig(policy=only.policy, queue_order=only.queue_order, max_num_seqs=only.max_num_seqs),
        KVCache(num_blocks=num_blocks, block_size=BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=only.max_num_batched_tokens,
        max_model_len=only.max_model_len,
    )
    RealTimeDriver(EngineCore(scheduler, played), played, played, played.emit).run()  # type: ignore[arg-type]
    return played.plans


def simulated_plans(config: ClusterConfig, records: Sequence[TraceRecord]) -> list[StepPlan]:
    simulation = RecordedSimulation(config, records, STEP_TIME, has_bulk_steps=False)
    simulation.plans = []
    simulation.run()
    return simulation.plans


@pytest.mark.parametrize("queue_order", QUEUE_ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_serving_and_simulating_plan_the_same_steps(policy: str, queue_order: str) -> None:
    config = cluster(group(count=1, policy=policy, queue_order=queue_order, kv_cache_tokens=1_200))
    records = chats(8, gap_s=0.021)
    served, simulated = served_plans(config, records), simulated_plans(config, records)
    assert len(served) > 60
    for mine, theirs in zip(served, simulated, strict=True):
        assert msgspec.msgpack.encode(mine) == msgspec.msgpack.encode(theirs)


def test_serving_and_simulating_plan_the_same_steps_when_memory_is_short() -> None:
    config = cluster(group(count=1, kv_cache_tokens=480, max_num_batched_tokens=64))
    records = chats(8, 2, gap_s=0.004)
    assert served_plans(config, records) == simulated_plans(config, records)
