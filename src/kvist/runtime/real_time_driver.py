"""Runs an EngineCore under real time: takes commands, steps, hands out what happened. One thread, no busy waiting.

Errors of one request or one step are isolated by the core. Any other error means that the engine's state can no longer
be trusted: `run` raises it, and whoever runs the driver reports the engine as lost.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable

from kvist.core.clock import Clock
from kvist.core.errors import KvistError
from kvist.core.request_events import EventBatch, RequestEvent
from kvist.engine.engine_core import EngineCore, OpenStep
from kvist.runtime.messages import Abort, Command, Refusal, ResetPrefixCache, Submit, Turn, WireError

HEARTBEAT_S = 1.0  # how often an idle engine says that it is alive
RETRY_S = 0.005  # wait before asking again for a plan when requests exist but none may run yet


class RealTimeDriver:
    """The step loop of a serving engine. Commands come through the inbox, from any thread, between two steps."""

    def __init__(
        self, core: EngineCore, clock: Clock, inbox: queue.SimpleQueue[Command], emit: Callable[[Turn], None]
    ) -> None:
        """`emit` is called with each turn, in the loop's thread; what it costs delays the next step."""
        self._core = core
        self._clock = clock
        self._emit = emit
        self._inbox = inbox
        self._open_steps: deque[tuple[OpenStep, float]] = deque()  # with the time each was begun
        self._last_finish_s = 0.0
        self._is_stopping = False

    def run(self) -> None:
        """Step until Shutdown. Whatever is still running then is dropped."""
        wait_s = HEARTBEAT_S
        while True:
            self._handle_commands(wait_s)
            if self._is_stopping:
                return
            wait_s = self._step()

    def _handle_commands(self, wait_s: float) -> None:
        """Wait at most `wait_s` for a command, handle all there are, and answer at once: a step may take long."""
        try:
            command = self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            if wait_s == HEARTBEAT_S:
                self._emit_turn(None)
            return
        events: list[RequestEvent] = []
        refusals: list[Refusal] = []
        resets: list[tuple[int, bool]] = []
        while True:
            self._handle(command, events, refusals, resets)
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                break
        if events or refusals or resets:
            batch = EventBatch(time_s=self._clock.now_s(), events=events) if events else None
            self._emit_turn(batch, refusals, resets)

    def _handle(
        self,
        command: Command,
        events: list[RequestEvent],
        refusals: list[Refusal],
        resets: list[tuple[int, bool]],
    ) -> None:
        if isinstance(command, Submit):
            try:
                events += self._core.add_request(command.request, self._clock.now_s())
            except KvistError as error:
                refusals.append(Refusal(command.request.request_id, WireError.of(error)))
        elif isinstance(command, Abort):
            events += self._core.abort_request(command.request_id, self._clock.now_s(), reason=command.reason)
        elif isinstance(command, ResetPrefixCache):
            resets.append((command.call_id, self._core.reset_prefix_cache()))
        else:
            self._is_stopping = True

    def _step(self) -> float:
        """Begin as many steps as may be open, finish the oldest; return how long to wait for commands then."""
        core = self._core
        now_s = self._clock.now_s()
        while (step := core.begin(now_s)) is not None:
            self._open_steps.append((step, now_s))
            now_s = self._clock.now_s()
        if self._open_steps:
            self._finish_oldest()
            return 0.0
        batch = core.take_events(now_s)
        if batch.events:
            self._emit_turn(batch)
        return RETRY_S if core.has_unfinished_requests else HEARTBEAT_S

    def _finish_oldest(self) -> None:
        step, begun_s = self._open_steps.popleft()
        self._core.wait(step)
        now_s = self._clock.now_s()
        self._emit_turn(self._core.finish(step, now_s, step_time_s=now_s - max(begun_s, self._last_finish_s)))
        self._last_finish_s = now_s

    def _emit_turn(
        self,
        batch: EventBatch | None,
        refusals: list[Refusal] | None = None,
        resets: list[tuple[int, bool]] | None = None,
    ) -> None:
        self._emit(Turn(self._clock.now_s(), self._core.status(), batch, refusals or [], resets or []))
