"""An engine in a process of its own, reached through a socket pair.

End of file means that the peer is gone, on both sides: the child exits, the parent reports the engine as lost.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import threading
from collections.abc import Sequence

from kvist.config.engine_config import EngineConfig
from kvist.core.errors import EngineUnavailableError
from kvist.runtime.engine_client import EngineInfo
from kvist.runtime.engine_launch import EngineChild, launch_engine
from kvist.runtime.engine_link import LinkEvents
from kvist.runtime.messages import Command, Configure, EngineMessage, Ready, StartFailed, StartPhase, Turn
from kvist.runtime.transport import FrameDecoder, FrameEncoder, FrameError

log = logging.getLogger(__name__)

EXIT_GRACE_S = 5.0  # between asking a child to end and killing it


class ProcessLink:
    """See EngineLink. `command` is as for `launch_engine`; it has been run already if `child` is given."""

    def __init__(self, command: Sequence[str], config: EngineConfig, child: EngineChild | None = None) -> None:
        self._command = command
        self._config = config
        self._child = child
        self._encoder = FrameEncoder()
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._is_stopped = False
        self._crash_reason: str | None = None
        self._end: asyncio.Task[None] | None = None
        self._events: LinkEvents
        self._exited: asyncio.Future[int]
        self._ready: asyncio.Future[EngineInfo]

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, events: LinkEvents) -> EngineInfo:
        loop = asyncio.get_running_loop()
        self._events = events
        self._exited = loop.create_future()
        self._ready = loop.create_future()
        child = self._child or launch_engine(self._command)
        self._watch(child.process, loop)
        self._transport, _ = await loop.create_unix_connection(lambda: _LinkProtocol(self), sock=child.connection)
        self._write(Configure(self._config))
        return await self._ready

    def send(self, command: Command) -> None:
        self._write(command)

    async def stop(self) -> None:
        self._is_stopped = True
        process = self._process
        if process is not None and not self._exited.done():
            if self._transport is None or self._transport.is_closing():
                process.terminate()
            else:
                self._transport.close()  # end of file: the child exits
            try:
                await asyncio.wait_for(asyncio.shield(self._exited), EXIT_GRACE_S)
            except TimeoutError:
                process.kill()
                await self._exited
        if self._transport is not None:
            self._transport.close()

    def _watch(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._process = process

        def watch() -> None:
            code = process.wait()
            try:
                loop.call_soon_threadsafe(self._exited.set_result, code)
            except RuntimeError:
                log.debug("engine process ended after its client pid=%d code=%d", process.pid, code)

        threading.Thread(target=watch, name="kvist-engine-watch", daemon=True).start()

    def _write(self, message: Command | Configure) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(bytes(self._encoder.encode(message)))

    def receive(self, message: EngineMessage) -> None:
        if isinstance(message, Turn):
            self._events.on_turn(message)
        elif isinstance(message, StartPhase):
            self._events.on_start_phase(message)
        elif isinstance(message, Ready):
            if not self._ready.done():
                self._ready.set_result(message.info)
        elif isinstance(message, StartFailed):
            if not self._ready.done():
                self._ready.set_exception(message.error.to_error())
        else:
            self._crash_reason = message.reason

    def disconnected(self, reason: str | None) -> None:
        """The line is down; `reason` if that was our doing."""
        self._end = asyncio.get_running_loop().create_task(self._conclude(reason))

    async def _conclude(self, reason: str | None) -> None:
        """Make sure that the child is gone, then tell how it ended."""
        if self._is_stopped:
            return
        process = self._process
        if reason is not None and process is not None:
            process.kill()
        try:
            code = await asyncio.wait_for(asyncio.shield(self._exited), EXIT_GRACE_S)
        except TimeoutError:
            if process is not None:
                process.kill()
            code = await self._exited
        reason = reason or self._crash_reason or _describe_exit(code)
        if not self._ready.done():
            self._ready.set_exception(EngineUnavailableError(f"{reason} while starting"))
        elif not self._is_stopped and not self._ready.cancelled() and self._ready.exception() is None:
            self._events.on_lost(reason)


class _LinkProtocol(asyncio.Protocol):
    """Feeds received bytes through the decoder; closes on anything that is not a message."""

    def __init__(self, link: ProcessLink) -> None:
        self._link = link
        self._decoder = FrameDecoder[EngineMessage](EngineMessage)
        self._transport: asyncio.BaseTransport | None = None
        self._reason: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._link.receive(message)
        except FrameError as error:
            self._reason = str(error)
            if self._transport is not None:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.disconnected(self._reason)


def _describe_exit(code: int) -> str:
    if code == -signal.SIGKILL:
        return "the engine process was ended by SIGKILL: by hand, or by the system for want of memory"
    if code < 0:
        return f"the engine process was ended by {signal.Signals(-code).name}"
    return f"the engine process ended with code {code}"
