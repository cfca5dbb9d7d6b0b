"""Runs an EngineCore under virtual time: arrivals, aborts and step ends are events; nothing waits.

The second of the two drivers of the step loop. Given the same arrivals and step durations it takes the same
decisions as the real-time driver, because both only call the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvist.core.clock import VirtualClock
from kvist.core.errors import KvistError
from kvist.core.request import NewRequest, RequestId
from kvist.core.request_events import EventBatch
from kvist.core.step_plan import StepPlan
from kvist.engine.engine_core import EngineCore, OpenStep
from kvist.simulator.event_queue import EventKind, EventQueue
from kvist.simulator.simulated_executor import SimulatedStep

Payload = NewRequest | RequestId | tuple[OpenStep, float]


class EventDriver:
    """Plays arrivals and aborts through one engine. Its executor must be a SimulatedExecutor."""

    def __init__(self, core: EngineCore, clock: VirtualClock) -> None:
        self._core = core
        self._clock = clock
        self._queue: EventQueue[Payload] = EventQueue()
        self._device_free_s = 0.0  # open steps run one after the other
        self._batches: list[EventBatch] = []
        self.rejected: list[tuple[RequestId, KvistError]] = []
        self.plans: list[StepPlan] = []

    def submit(self, requests: Iterable[NewRequest]) -> None:
        """Let each request arrive at its `arrival_time_s`."""
        for request in requests:
            self._queue.push(request.arrival_time_s, EventKind.ARRIVAL, request)

    def abort_at(self, time_s: float, request_id: RequestId) -> None:
        self._queue.push(time_s, EventKind.ABORT, request_id)

    def run(self, *, until_s: float | None = None, on_step: Callable[[], None] | None = None) -> list[EventBatch]:
        """Process events up to and including `until_s` (None: until none is left); return the batches since then.

        `on_step` is called after each finished step, for observers.
        """
        while (time_s := self._queue.next_time_s()) is not None and (until_s is None or time_s <= until_s):
            self._clock.advance_to(time_s)
            self._handle(time_s, on_step)
            if self._queue.next_time_s() != time_s:  # all that happens at this instant comes before the next step
                self._begin_steps(time_s)
        batches, self._batches = self._batches, []
        return batches

    def _handle(self, now: float, on_step: Callable[[], None] | None) -> None:
        _, kind, payload = self._queue.pop()
        if isinstance(payload, tuple):
            step, begun_s = payload
            self._batches.append(self._core.finish(step, now, now - begun_s))
            if on_step is not None:
                on_step()
        elif isinstance(payload, NewRequest):
            try:
                self._add_batch(now, self._core.add_request(payload, now))
            except KvistError as error:
                self.rejected.append((payload.request_id, error))
        else:
            assert kind is EventKind.ABORT
            self._add_batch(now, self._core.abort_request(payload, now))

    def _begin_steps(self, now: float) -> None:
        while (step := self._core.begin(now)) is not None:
            self.plans.append(step.plan)
            begun_s = max(now, self._device_free_s)
            duration_s = step.handle.duration_s if isinstance(step.handle, SimulatedStep) else 0.0
            self._device_free_s = begun_s + duration_s
            self._queue.push(self._device_free_s, EventKind.STEP_DONE, (step, begun_s))
        self._add_batch(now, self._core.take_events(now).events)

    def _add_batch(self, now: float, events: list) -> None:  # type: ignore[type-arg]
        if events:
            self._batches.append(EventBatch(time_s=now, events=events))
