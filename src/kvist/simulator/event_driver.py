"""Runs an EngineCore under virtual time: arrivals, aborts and step ends are events; nothing waits.

The second of the two drivers of the step loop. Given the same arrivals and step durations it takes the same
decisions as the real-time driver, because both only call the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kvist.core.clock import VirtualClock
from kvist.core.errors import KvistError
from kvist.core.request import NewRequest, RequestId
from kvist.core.request_events import EventBatch, RequestEvent
from kvist.core.step_plan import StepPlan
from kvist.engine.engine_core import EngineCore, OpenStep
from kvist.simulator.event_queue import EventKind, EventQueue
from kvist.simulator.simulated_executor import SimulatedStep

Command = NewRequest | RequestId


class EventDriver:
    """Plays arrivals and aborts through one engine. Its executor must be a SimulatedExecutor.

    As in real time, the loop is held while a step computes: what comes in meanwhile is looked at when it ends.
    """

    def __init__(self, core: EngineCore, clock: VirtualClock) -> None:
        self._core = core
        self._clock = clock
        self._queue: EventQueue[Command | None] = EventQueue()  # None: the oldest open step ends
        self._inbox: list[Command] = []
        self._open_steps: deque[tuple[OpenStep, float]] = deque()  # with the time at which each starts to compute
        self._device_free_s = 0.0  # open steps are computed one after the other
        self._batches: list[EventBatch] = []
        self.rejected: list[tuple[RequestId, KvistError]] = []
        self.plans: list[StepPlan] = []

    def submit(self, requests: Iterable[NewRequest]) -> None:
        """Let each request arrive at its `arrival_time_s`."""
        for request in requests:
            self._queue.push(request.arrival_time_s, EventKind.ARRIVAL, request)

    def abort_at(self, time_s: float, request_id: RequestId) -> None:
        self._queue.push(time_s, EventKind.ABORT, request_id)

    def run(self, *, until_s: float | None = None) -> list[EventBatch]:
        """Process events up to and including `until_s` (None: until none is left); return the batches since then."""
        while (time_s := self._queue.next_time_s()) is not None and (until_s is None or time_s <= until_s):
            self._clock.advance_to(time_s)
            is_held = bool(self._open_steps)
            while self._queue.next_time_s() == time_s:  # all that happens at one instant comes before the next step
                _, _, payload = self._queue.pop()
                if payload is None:
                    self._finish_oldest(time_s)
                    is_held = False
                else:
                    self._inbox.append(payload)
            if not is_held:
                self._turn(time_s)
        batches, self._batches = self._batches, []
        return batches

    def _finish_oldest(self, now: float) -> None:
        step, started_s = self._open_steps.popleft()
        self._batches.append(self._core.finish(step, now, now - started_s))

    def _turn(self, now: float) -> None:
        """Take in what came, then begin as many steps as may be open."""
        events: list[RequestEvent] = []
        inbox, self._inbox = self._inbox, []
        for command in inbox:
            if not isinstance(command, NewRequest):
                events += self._core.abort_request(command, now)
                continue
            try:
                events += self._core.add_request(command, now)
            except KvistError as error:
                self.rejected.append((command.request_id, error))
        if events:
            self._batches.append(EventBatch(time_s=now, events=events))
        while len(self._open_steps) < self._core.max_steps_in_flight and (step := self._core.begin(now)) is not None:
            started_s = max(now, self._device_free_s)
            duration_s = step.handle.duration_s if isinstance(step.handle, SimulatedStep) else 0.0
            self._device_free_s = started_s + duration_s
            self._open_steps.append((step, started_s))
            self.plans.append(step.plan)
            self._queue.push(self._device_free_s, EventKind.STEP_DONE, None)
        if not self._open_steps:
            batch = self._core.take_events(now)
            if batch.events:
                self._batches.append(batch)
