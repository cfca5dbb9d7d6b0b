"""An engine in a thread of this process: messages pass as objects, nothing is encoded."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable

from kvist.core.clock import Clock
from kvist.core.errors import EngineUnavailableError
from kvist.runtime.built_engine import BuiltEngine, ReportPhase
from kvist.runtime.engine_client import EngineInfo
from kvist.runtime.engine_link import LinkEvents
from kvist.runtime.messages import Command, Shutdown, StartPhase, Turn
from kvist.runtime.real_time_driver import RealTimeDriver

log = logging.getLogger(__name__)

STOP_GRACE_S = 10.0  # a step that runs longer than this is left to end by itself


class ThreadLink:
    """See EngineLink. `build` runs in the engine's thread."""

    def __init__(self, build: Callable[[ReportPhase], BuiltEngine], clock: Clock) -> None:
        self._build = build
        self._clock = clock
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvist-engine", daemon=True)
        self._is_stopped = False
        self._events: LinkEvents
        self._loop: asyncio.AbstractEventLoop
        self._ready: asyncio.Future[EngineInfo]

    async def start(self, events: LinkEvents) -> EngineInfo:
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._thread.start()
        return await self._ready

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    async def stop(self) -> None:
        self._is_stopped = True
        self._inbox.put(Shutdown())
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_GRACE_S)

    # --- in the engine's thread ---

    def _run(self) -> None:
        try:
            engine = self._build(self._report_phase)
        except BaseException as error:  # noqa: BLE001 - the thread must not end without a word
            self._call(self._fail_start, error)
            return
        try:
            self._call(self._set_ready, engine.info)
            RealTimeDriver(engine.core, self._clock, self._inbox, self._emit, engine.tracer).run()
        except BaseException as error:
            log.exception("engine thread ended")
            self._call(self._report_lost, f"{type(error).__name__}: {error}")
        finally:
            engine.close()

    def _report_phase(self, phase: StartPhase) -> None:
        self._call(self._events.on_start_phase, phase)

    def _emit(self, turn: Turn) -> None:
        self._call(self._events.on_turn, turn)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody is left to serve
            self._inbox.put(Shutdown())

    # --- in the client's loop ---

    def _set_ready(self, info: EngineInfo) -> None:
        if not self._ready.done():
            self._ready.set_result(info)

    def _fail_start(self, error: BaseException) -> None:
        if not self._ready.done():
            is_fit = isinstance(error, Exception)
            self._ready.set_exception(error if is_fit else EngineUnavailableError(f"the engine stopped: {error!r}"))

    def _report_lost(self, reason: str) -> None:
        if not self._is_stopped:
            self._events.on_lost(reason)
