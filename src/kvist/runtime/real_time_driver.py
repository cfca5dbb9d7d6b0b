"""Runs an EngineCore under real time: takes commands, steps, hands out what happened. One thread, no busy waiting.

Errors of one request or one step are isolated by the core. Any other error means that the engine's state can no longer
be trusted: `run` raises it, and whoever runs the driver reports the engine as lost.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvist.core.clock import Clock
from kvist.core.errors import InvalidRequestError, KvistError
from kvist.core.request_events import EventBatch, RequestEvent
from kvist.engine.engine_core import EngineCore, OpenStep
from kvist.runtime.messages import (
    Abort,
    Command,
    Refusal,
    ResetPrefixCache,
    SetTracing,
    Submit,
    TracingAnswer,
    Turn,
    WireError,
)
from kvist.runtime.step_tracer import StepTracer

HEARTBEAT_S = 1.0  # how often an idle engine says that it is alive
RETRY_S = 0.005  # wait before asking again for a plan when requests exist but none may run yet


@dataclass(slots=True)
class _Answers:
    """What the commands of one turn came to."""

    events: list[RequestEvent] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    resets: list[tuple[int, bool]] = field(default_factory=list)
    tracing: list[TracingAnswer] = field(default_factory=list)

    @property
    def is_any(self) -> bool:
        return bool(self.events or self.refusals or self.resets or self.tracing)


_NO_ANSWERS = _Answers()


class RealTimeDriver:
    """The step loop of a serving engine. Commands come through the inbox, from any thread, between two steps."""

    def __init__(
        self,
        core: EngineCore,
        clock: Clock,
        inbox: queue.SimpleQueue[Command],
        emit: Callable[[Turn], None],
        tracer: StepTracer | None = None,
    ) -> None:
        """`emit` is called with each turn, in the loop's thread; what it costs delays the next step. So does the
        tracer, which is told of everything after `emit` is.
        """
        self._core = core
        self._clock = clock
        self._emit = emit
        self._tracer = tracer
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
        if wait_s > 0 and self._tracer is not None:
            self._tracer.flush(self._clock.now_s())
        try:
            command = self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            if wait_s == HEARTBEAT_S:
                self._emit_turn(None)
            return
        answers = _Answers()
        while True:
            self._handle(command, answers)
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                break
        if answers.is_any:
            now_s = self._clock.now_s()
            batch = EventBatch(time_s=now_s, events=answers.events) if answers.events else None
            self._emit_turn(batch, answers)
            self._trace_answers(batch, answers, now_s)

    def _handle(self, command: Command, answers: _Answers) -> None:
        if isinstance(command, Submit):
            try:
                answers.events += self._core.add_request(command.request, self._clock.now_s())
            except KvistError as error:
                answers.refusals.append(Refusal(command.request.request_id, WireError.of(error)))
        elif isinstance(command, Abort):
            answers.events += self._core.abort_request(command.request_id, self._clock.now_s(), reason=command.reason)
        elif isinstance(command, ResetPrefixCache):
            answers.resets.append((command.call_id, self._core.reset_prefix_cache()))
        elif isinstance(command, SetTracing):
            answers.tracing.append(self._set_tracing(command))
        else:
            self._is_stopping = True

    def _set_tracing(self, command: SetTracing) -> TracingAnswer:
        try:
            if self._tracer is None:
                raise InvalidRequestError("this engine writes no traces")
            file = self._tracer.start(self._clock.now_s()) if command.is_on else self._tracer.stop()
        except KvistError as error:
            return TracingAnswer(command.call_id, error=WireError.of(error))
        return TracingAnswer(command.call_id, file)

    def _trace_answers(self, batch: EventBatch | None, answers: _Answers, now_s: float) -> None:
        if self._tracer is None:
            return
        if batch is not None:
            self._tracer.note_events(batch)
        for refusal in answers.refusals:
            self._tracer.note_refusal(refusal.request_id, refusal.error.message, now_s)

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
            if self._tracer is not None:
                self._tracer.note_events(batch)
        return RETRY_S if core.has_unfinished_requests else HEARTBEAT_S

    def _finish_oldest(self) -> None:
        step, begun_s = self._open_steps.popleft()
        self._core.wait(step)
        now_s = self._clock.now_s()
        batch = self._core.finish(step, now_s, step_time_s=now_s - max(begun_s, self._last_finish_s))
        self._emit_turn(batch)
        if self._tracer is not None:
            self._tracer.note_step(step.plan, batch)
        self._last_finish_s = now_s

    def _emit_turn(self, batch: EventBatch | None, answers: _Answers | None = None) -> None:
        answers = answers or _NO_ANSWERS
        self._emit(
            Turn(self._clock.now_s(), self._core.status(), batch, answers.refusals, answers.resets, answers.tracing)
        )
