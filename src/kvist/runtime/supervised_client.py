"""EngineClient over a link to an engine; starts it again when it dies. Owns the open streams and the restart policy."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import msgspec

from kvist.core.clock import Clock
from kvist.core.errors import EngineUnavailableError, InvalidRequestError, KvistError
from kvist.core.request import FinishReason, NewRequest, RequestId
from kvist.core.request_events import EventBatch, RequestEvent
from kvist.runtime.engine_client import EngineInfo, EngineStatus
from kvist.runtime.engine_link import EngineLink, LinkFactory
from kvist.runtime.event_streams import EventStreams
from kvist.runtime.messages import Abort, Command, ResetPrefixCache, SetTracing, Shutdown, StartPhase, Submit, Turn
from kvist.scheduler.scheduler_status import SchedulerStatus

log = logging.getLogger(__name__)

A = TypeVar("A")  # what the engine answers

FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 30.0
MAX_QUICK_DEATHS = 5
QUICK_DEATH_S = 60.0  # an engine that lived longer than this starts with a clean record
ABORT_GRACE_S = 5.0  # for aborted requests to report their end before the engine is stopped

_NO_LOAD = SchedulerStatus(
    num_running=0,
    num_waiting=0,
    num_waiting_tokens=0,
    num_total_blocks=0,
    num_free_blocks=0,
    num_evictable_blocks=0,
)


class SupervisedEngineClient:
    """See EngineClient. `links` makes one link per incarnation of the engine."""

    def __init__(self, links: LinkFactory, clock: Clock) -> None:
        self._links = links
        self._clock = clock
        self._streams = EventStreams()
        self._listeners: list[Callable[[EventBatch], None]] = []
        self._phase_listeners: list[Callable[[StartPhase], None]] = []
        self._resets: dict[int, asyncio.Future[bool]] = {}
        self._tracing_calls: dict[int, asyncio.Future[str]] = {}
        self._call_ids = itertools.count()
        self._link: EngineLink | None = None
        self._info: EngineInfo | None = None
        self._state = "starting"
        self._reason: str | None = "not started"
        self._load = _NO_LOAD
        self._last_turn_s = clock.now_s()
        self._ready_s = 0.0
        self._num_quick_deaths = 0
        self._num_restarts = 0
        self._restart: asyncio.Task[None] | None = None
        self._idle: asyncio.Event = asyncio.Event()

    async def start(self) -> None:
        await self._start_link()

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineUnavailableError("the engine has not been started yet")
        return self._info

    async def submit(self, request: NewRequest) -> AsyncGenerator[list[RequestEvent], None]:
        if self._state != "ready" or self._link is None:
            raise EngineUnavailableError(f"the engine is {self._state}: {self._reason}")
        if request.request_id in self._streams:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use", param="request_id")
        link = self._link
        stream = self._streams.open(request)
        try:
            link.send(Submit(request))
            while not stream.is_exhausted:
                yield await stream.take()
        finally:
            self._streams.close(request.request_id)
            if not stream.is_finished:
                link.send(Abort(request.request_id))
            if not self._streams:
                self._idle.set()

    async def abort(self, request_id: RequestId, *, reason: FinishReason = FinishReason.ABORT) -> None:
        if self._link is not None:
            self._link.send(Abort(request_id, reason))

    def status(self) -> EngineStatus:
        load = self._load
        return EngineStatus(
            state=self._state,
            heartbeat_age_s=max(0.0, self._clock.now_s() - self._last_turn_s),
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            num_waiting_tokens=load.num_waiting_tokens,
            num_total_blocks=load.num_total_blocks,
            num_free_blocks=load.num_free_blocks,
            num_evictable_blocks=load.num_evictable_blocks,
            num_restarts=self._num_restarts,
            reason=self._reason,
        )

    async def reset_prefix_cache(self) -> bool:
        return await self._call(self._resets, ResetPrefixCache)

    async def start_profile(self) -> str:
        return await self._call(self._tracing_calls, lambda call_id: SetTracing(call_id, is_on=True))

    async def stop_profile(self) -> str:
        return await self._call(self._tracing_calls, lambda call_id: SetTracing(call_id, is_on=False))

    async def _call(self, calls: dict[int, asyncio.Future[A]], command: Callable[[int], Command]) -> A:
        """Send a command that the engine answers, and wait for the answer. Raises what the engine refused it with."""
        if self._state != "ready" or self._link is None:
            raise EngineUnavailableError(f"the engine is {self._state}: {self._reason}")
        call_id = next(self._call_ids)
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        calls[call_id] = answer
        try:
            self._link.send(command(call_id))
            return await answer
        finally:
            calls.pop(call_id, None)

    def add_listener(self, listener: Callable[[EventBatch], None]) -> None:
        self._listeners.append(listener)

    def add_phase_listener(self, listener: Callable[[StartPhase], None]) -> None:
        """Call `listener` with each phase of a start, for progress bars and logs."""
        self._phase_listeners.append(listener)

    async def close(self, *, drain_s: float) -> None:
        if self._state == "closed":
            return
        self._state, self._reason = "draining", "the server is shutting down"
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
        if self._link is not None:
            await self._wait_until_idle(drain_s)
            for request_id in self._streams.request_ids():
                self._link.send(Abort(request_id))
            await self._wait_until_idle(ABORT_GRACE_S)
            self._link.send(Shutdown())
            await self._link.stop()
        self._state = "closed"
        self._fail_streams("the engine was shut down")

    async def _wait_until_idle(self, timeout_s: float) -> None:
        """Wait until no stream is open, at most `timeout_s`."""
        self._idle.clear()
        if self._streams:
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
            except TimeoutError:
                log.info("requests still open num_open=%d waited_s=%.1f", len(self._streams), timeout_s)

    async def _start_link(self) -> None:
        link = self._links()
        self._link = link
        try:
            self._info = await link.start(self)
        except BaseException:
            await link.stop()
            raise
        num_blocks = self._info.num_blocks
        self._load = msgspec.structs.replace(_NO_LOAD, num_total_blocks=num_blocks, num_free_blocks=num_blocks)
        self._ready_s = self._last_turn_s = self._clock.now_s()
        self._state, self._reason = "ready", None

    # --- LinkEvents ---

    def on_turn(self, turn: Turn) -> None:
        self._last_turn_s = turn.time_s
        self._load = turn.load
        if turn.batch is not None:
            self._streams.deliver(turn.batch.events)
            for listener in self._listeners:
                listener(turn.batch)
        for refusal in turn.refusals:
            self._streams.refuse(refusal.request_id, refusal.error.to_error())
        for call_id, is_empty in turn.resets:
            _answer(self._resets.get(call_id), is_empty, None)
        for told in turn.tracing:
            error = None if told.error is None else told.error.to_error()
            _answer(self._tracing_calls.get(told.call_id), told.file or "", error)

    def on_start_phase(self, phase: StartPhase) -> None:
        log.debug("engine start phase=%s", phase.name)
        for listener in self._phase_listeners:
            listener(phase)

    def on_lost(self, reason: str) -> None:
        log.error("engine lost reason=%s num_open=%d", reason, len(self._streams))
        self._load = _NO_LOAD
        lived_s = self._clock.now_s() - self._ready_s
        self._num_quick_deaths = self._num_quick_deaths + 1 if lived_s < QUICK_DEATH_S else 1
        is_closing = self._state in ("draining", "closed")
        if not is_closing:
            self._state, self._reason = "starting", f"the engine was lost ({reason}) and is being restarted"
        self._fail_streams(f"the engine was lost: {reason}")
        if not is_closing:
            self._restart = asyncio.get_running_loop().create_task(self._restart_engine(reason))

    def _fail_streams(self, reason: str) -> None:
        now_s = self._clock.now_s()
        failed: list[RequestEvent] = list(self._streams.fail_all(reason, now_s))
        calls: list[asyncio.Future[Any]] = [*self._resets.values(), *self._tracing_calls.values()]
        for answer in calls:
            if not answer.done():
                answer.set_exception(EngineUnavailableError(reason))
        if failed:
            for listener in self._listeners:
                listener(EventBatch(time_s=now_s, events=failed))

    async def _restart_engine(self, reason: str) -> None:
        """Bring up a new engine, waiting longer after each quick death; give up after too many."""
        while self._num_quick_deaths < MAX_QUICK_DEATHS:
            if self._link is not None:
                await self._link.stop()
            backoff_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (self._num_quick_deaths - 1))
            await asyncio.sleep(backoff_s)
            try:
                await self._start_link()
            except Exception as error:  # noqa: BLE001 - whatever keeps it from starting is kept as the reason
                reason = str(error)
                self._num_quick_deaths += 1
                self._reason = f"the engine does not start: {reason}"
                log.error("engine restart failed attempt=%d reason=%s", self._num_quick_deaths, reason)
            else:
                self._num_restarts += 1
                log.warning("engine restarted num_restarts=%d", self._num_restarts)
                return
        self._state = "dead"
        self._reason = (
            f"the engine died {self._num_quick_deaths} times in a row, last: {reason}. It stays down until the server "
            "is restarted; the log says more"
        )
        log.error("engine given up reason=%s", reason)


def _answer(call: asyncio.Future[A] | None, value: A, error: KvistError | None) -> None:
    """End a call, unless whoever made it is gone."""
    if call is None or call.done():
        return
    if error is None:
        call.set_result(value)
    else:
        call.set_exception(error)
