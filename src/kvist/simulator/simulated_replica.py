"""One replica under virtual time: the real engine core, its open steps in pipeline stages, and steps taken in bulk.

Takes the same decisions as the other drivers: what comes in while a step computes is looked at when the step ends, or,
in a pipeline, when a stage is free to begin another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvist.cluster.replica_handle import ReplicaSpec
from kvist.config.cluster_config import ReplicaGroupConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.core.errors import KvistError
from kvist.core.request import NewRequest, RequestId
from kvist.core.request_events import EventBatch, RequestEvent
from kvist.core.step_plan import StepPlan
from kvist.costmodel.step_time_model import KnownStepTimes
from kvist.costmodel.step_work import StepWork
from kvist.engine.engine_core import EngineCore, OpenStep
from kvist.kvcache.connector import KVReceive
from kvist.kvcache.kv_cache import KVCache
from kvist.kvcache.kv_events import KVEvent
from kvist.scheduler.scheduler import Scheduler
from kvist.simulator.links import NS_PER_S
from kvist.simulator.timed_executor import TimedExecutor, TimedStep, duration_ns

STEPS_AT_ONCE = 16  # by which a run goes on: what is computed in vain when it is cut short


class ReplicaListener(Protocol):
    """Who hears what a replica does."""

    def on_wake_at(self, replica: SimulatedReplica, time_ns: int, version: int) -> None:
        """Call `replica.wake(time_ns, version)` at that time."""
        ...

    def on_events(
        self, replica: SimulatedReplica, batch: EventBatch, now_ns: int, *, plan: StepPlan | None = None
    ) -> None:
        """What happened in a turn; plan: of the step that ended in it."""
        ...

    def on_given_up(self, replica: SimulatedReplica, request_id: RequestId, num_tokens: int | None) -> None:
        """The replica holds the KV of so many tokens of a request that it works on no more. None: it still does, or
        the request has ended."""
        ...

    def on_refused(self, replica: SimulatedReplica, request_id: RequestId, error: KvistError) -> None: ...

    def on_step(
        self, replica: SimulatedReplica, plan: StepPlan, work: StepWork, *, start_ns: int, end_ns: int
    ) -> None: ...

    def on_mail(self, replica: SimulatedReplica) -> None:
        """Something is in the inbox: let it take its turn at this instant, unless it is held."""
        ...

    def on_repeated(self, replica: SimulatedReplica, run: DecodeRun) -> None: ...

    def on_receive(self, replica: SimulatedReplica, receive: KVReceive, now_ns: int) -> None: ...

    def on_kv_events(self, replica: SimulatedReplica, events: list[KVEvent]) -> None: ...


@dataclass(slots=True)
class DecodeRun:
    """Steps that only repeat: who decodes, when the first one begins and when each ends.

    num_keys: keys read by the next step. num_left: steps by which it may go on.
    """

    request_ids: list[RequestId]
    start_ns: int
    ends_ns: list[int]
    num_keys: int
    num_left: int


@dataclass(slots=True)
class _Step:
    open_step: OpenStep
    start_ns: int
    ends_ns: int


class SimulatedReplica:
    """`has_bulk_steps` False plans each step: slower, with the same results."""

    def __init__(
        self,
        spec: ReplicaSpec,
        group: ReplicaGroupConfig,
        listener: ReplicaListener,
        *,
        block_size: int,
        check_invariants: bool,
        has_bulk_steps: bool,
    ) -> None:
        self.spec = spec
        self.group = group
        self._listener = listener
        self._has_bulk_steps = has_bulk_steps and spec.num_stages == 1
        num_blocks = max(spec.kv_cache_tokens // block_size, 2)
        self._cache = KVCache(
            num_blocks=num_blocks,
            block_size=block_size,
            enable_prefix_caching=group.enable_prefix_caching,
            record_events=True,
        )
        self.scheduler = Scheduler(
            SchedulerConfig(
                policy=group.policy,
                queue_order=group.queue_order,
                max_num_seqs=group.max_num_seqs,
                max_num_queued_reqs=2**31,
                default_ttft_ms=group.default_ttft_ms,
                default_tpot_ms=group.default_tpot_ms,
                max_steps_in_flight=spec.num_stages,
                check_invariants=check_invariants,
            ),
            self._cache,
            block_size=block_size,
            max_num_batched_tokens=group.max_num_batched_tokens,
            max_model_len=group.max_model_len,
            num_stages=spec.num_stages,
            step_time_model=KnownStepTimes(spec.step_time),
        )
        self._executor = TimedExecutor(num_blocks=num_blocks, step_time=spec.step_time)
        self._core = EngineCore(self.scheduler, self._executor)
        self._inbox: list[Callable[[float], Sequence[RequestEvent]]] = []
        self._steps: deque[_Step] = deque()
        self._stages_free_ns = [0] * spec.num_stages
        self._run: DecodeRun | None = None
        self._version = 0  # of the next awaited end: an older wake-up means nothing
        self.is_live = True

    @property
    def replica_id(self) -> int:
        return self.spec.replica_id

    @property
    def is_held(self) -> bool:
        """Whether a turn must wait until a step ends."""
        return self._run is not None or len(self._steps) >= self.spec.num_stages

    def submit(self, new: NewRequest, now_ns: int) -> None:
        """Let `new` reach the replica's inbox."""

        def add(now: float) -> Sequence[RequestEvent]:
            try:
                return self._core.add_request(new, now)
            except KvistError as error:
                self._listener.on_refused(self, new.request_id, error)
                return []

        self.deliver(add, now_ns)

    def abort(self, request_id: RequestId, now_ns: int) -> None:
        self.deliver(lambda now: self._core.abort_request(request_id, now), now_ns)

    def give_up(self, request_id: RequestId, now_ns: int) -> None:
        """Let the request go on elsewhere: the listener's `on_given_up` says with how much KV."""

        def hand_over(now: float) -> Sequence[RequestEvent]:
            num_tokens = self.scheduler.hand_over(request_id, now)
            self._listener.on_given_up(self, request_id, num_tokens)
            return []

        self.deliver(hand_over, now_ns)

    def forgo_kv(self, request_id: RequestId, now_ns: int) -> None:
        """If the request still awaits memory for KV from elsewhere, let it be computed here: the KV is given up."""

        def forgo(now: float) -> Sequence[RequestEvent]:
            self.scheduler.forgo_kv(request_id)
            return []

        self.deliver(forgo, now_ns)

    def bring(self, request_id: RequestId, num_tokens: int, now_ns: int) -> None:
        """The KV of the request's first `num_tokens` tokens is in its blocks."""

        def arrive(now: float) -> Sequence[RequestEvent]:
            self.scheduler.kv_handover.arrive(request_id, num_tokens)
            return []

        self.deliver(arrive, now_ns)

    def release_lease(self, request_id: RequestId, now_ns: int) -> None:
        def release(now: float) -> Sequence[RequestEvent]:
            self.scheduler.kv_handover.release_lease(request_id)
            return []

        self.deliver(release, now_ns)

    def deliver(self, command: Callable[[float], Sequence[RequestEvent]], now_ns: int) -> None:
        """Put a command into the inbox. A run of steps ends with the one that computes now."""
        self._inbox.append(command)
        self._listener.on_mail(self)
        run = self._run
        if run is None:
            return
        run.num_left = 0
        index = bisect_left(run.ends_ns, now_ns)
        if index < len(run.ends_ns) - 1:
            del run.ends_ns[index + 1 :]
            self._wake_at(run.ends_ns[index])

    def wake(self, now_ns: int, version: int) -> bool:
        """A step, or a run of them, ends. False if that is not awaited any more."""
        if not self.is_live or (version != self._version and self.spec.num_stages == 1):
            return False
        if self._run is not None:
            if self._run.num_left:
                self._extend_run(self._run, now_ns)
                return False
            self._end_run(self._run)
        else:
            step = self._steps.popleft()
            batch = self._core.finish(step.open_step, now_ns / NS_PER_S, (step.ends_ns - step.start_ns) / NS_PER_S)
            self._listener.on_events(self, batch, now_ns, plan=step.open_step.plan)
            self._publish_kv_events()
        return True

    def turn(self, now_ns: int) -> None:
        """Take in what came, then begin as many steps as may be open."""
        now = now_ns / NS_PER_S
        inbox, self._inbox = self._inbox, []
        events: list[RequestEvent] = []
        for command in inbox:
            events += command(now)
        if events:
            self._listener.on_events(self, EventBatch(time_s=now, events=events), now_ns)
        if not self._steps and not inbox and self._has_bulk_steps and self._begin_run(now_ns):
            return
        while len(self._steps) < self.spec.num_stages and (step := self._core.begin(now)) is not None:
            self._begin(step, now_ns)
        for receive in self.scheduler.kv_handover.take_receives():
            self._listener.on_receive(self, receive, now_ns)
        if not self._steps:
            batch = self._core.take_events(now)
            if batch.events:
                self._listener.on_events(self, batch, now_ns)
        self._publish_kv_events()

    def stop(self) -> None:
        """The replica is gone."""
        self.is_live = False
        self._core.close()

    def _begin(self, step: OpenStep, now_ns: int) -> None:
        """Send a step through the stages: each takes an equal part of its time, and one step at a time."""
        handle = step.handle
        assert isinstance(handle, TimedStep), step.error
        num_stages = self.spec.num_stages
        start_ns = end_ns = max(now_ns, self._stages_free_ns[0])
        for stage in range(num_stages):
            end_ns = max(end_ns, self._stages_free_ns[stage]) + -(-handle.duration_ns // num_stages)
            self._stages_free_ns[stage] = end_ns
        self._steps.append(_Step(step, start_ns, end_ns))
        self._listener.on_step(self, step.plan, handle.work, start_ns=start_ns, end_ns=end_ns)
        self._wake_at(end_ns)

    def _begin_run(self, now_ns: int) -> bool:
        """Take the next steps at once if they only repeat the last one."""
        num_steps = self.scheduler.num_repeatable_steps()
        if num_steps < 2:
            return False
        repeated = self.scheduler.repeated_decodes
        self._run = DecodeRun(repeated.request_ids, now_ns, [], repeated.num_keys, num_steps)
        self._extend_run(self._run, now_ns)
        return True

    def _extend_run(self, run: DecodeRun, now_ns: int) -> None:
        num_steps = min(run.num_left, STEPS_AT_ONCE)
        num_rows = len(run.request_ids)
        step_time, end_ns = self.spec.step_time, now_ns
        for num_keys in range(run.num_keys, run.num_keys + num_steps * num_rows, num_rows):
            work = StepWork(
                num_tokens=num_rows, num_sequences=num_rows, num_sampled=num_rows, decode_context_tokens=num_keys
            )
            end_ns += duration_ns(step_time, work)
            run.ends_ns.append(end_ns)
        run.num_keys += num_steps * num_rows
        run.num_left -= num_steps
        self._wake_at(end_ns)

    def _end_run(self, run: DecodeRun) -> None:
        self._run = None
        starts = [run.start_ns, *run.ends_ns[:-1]]
        step_times_s = [(end - start) / NS_PER_S for start, end in zip(starts, run.ends_ns, strict=True)]
        self.scheduler.repeated_decodes.advance(self._executor.answers(run.request_ids), step_times_s)
        self._listener.on_repeated(self, run)

    def _wake_at(self, time_ns: int) -> None:
        self._version += 1
        self._listener.on_wake_at(self, time_ns, self._version)

    def _publish_kv_events(self) -> None:
        events = self._cache.drain_events()
        if events:
            self._listener.on_kv_events(self, events)
