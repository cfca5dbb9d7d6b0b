"""What the parts of the scheduler share: requests, queue, running set, open steps, and how blocks are given back."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.core.request import RequestId
from kvist.core.request_events import RequestEvent
from kvist.costmodel.step_time_model import LearningStepTimeModel
from kvist.kvcache.kv_cache import KVCache
from kvist.scheduler.kv_handover import KVHandover
from kvist.scheduler.plan_builder import PlannedStep
from kvist.scheduler.queue_orders import WaitingQueue
from kvist.scheduler.running_set import RunningSet
from kvist.scheduler.slack import PrefillPace
from kvist.scheduler.tracked_request import TrackedRequest


@dataclass(slots=True, eq=False)
class SchedulerState:
    """dropped: ids that the executor is to forget with the next plan. events: not yet handed out.

    num_stages: of the pipeline that steps go through.
    joined: requests that run on KV from elsewhere, which the next plan introduces to the executor.
    """

    kv_cache: KVCache
    block_size: int
    queue: WaitingQueue
    handover: KVHandover
    step_times: LearningStepTimeModel
    prefill_pace: PrefillPace
    num_stages: int = 1
    requests: dict[RequestId, TrackedRequest] = field(default_factory=dict)
    running: RunningSet = field(default_factory=RunningSet)
    open_steps: list[PlannedStep] = field(default_factory=list)
    dropped: list[RequestId] = field(default_factory=list)
    joined: dict[RequestId, TrackedRequest] = field(default_factory=dict)
    events: list[RequestEvent] = field(default_factory=list)

    def stop_running(self, request: TrackedRequest, *, keep_blocks: bool = False) -> None:
        """Take the blocks of `request`, or leave them to who asked to keep them. What open steps compute is discarded.

        Blocks may be handed out again at once although an open step still writes them: the executor runs steps in
        order, so a later step's writes come after.
        """
        self.running.remove(request)
        if request.num_in_flight_tokens:
            for step in self.open_steps:
                step.stale.add(request)
            request.num_in_flight_tokens = request.num_in_flight_samples = 0
        if request.table is not None and not keep_blocks:
            self.kv_cache.release(request.table)
            request.table = None
        request.num_covered_tokens = 0
        if self.joined.pop(request.id, None) is None:
            self.dropped.append(request.id)
