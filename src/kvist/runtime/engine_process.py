"""The child's side of ProcessLink: be configured, build, run the step loop, and end when the parent is gone."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from kvist.config.engine_config import EngineConfig
from kvist.core.clock import Clock
from kvist.core.errors import KvistError
from kvist.runtime.built_engine import BuiltEngine, ReportPhase
from kvist.runtime.free_memory import release_free_memory
from kvist.runtime.messages import (
    Abort,
    Command,
    Configure,
    Crashed,
    Ready,
    ResetPrefixCache,
    SetTracing,
    Shutdown,
    StartFailed,
    Submit,
    WireError,
)
from kvist.runtime.real_time_driver import RealTimeDriver
from kvist.runtime.transport import BlockingChannel, FrameError

log = logging.getLogger(__name__)

SEND_BUFFER_BYTES = 4 << 20  # room for many turns, so that a parent busy for a moment does not hold up the steps

ToEngine = Configure | Submit | Abort | ResetPrefixCache | SetTracing | Shutdown
Build = Callable[[EngineConfig, ReportPhase], BuiltEngine]


def run_engine_process(descriptor: str, build: Build, clock: Clock) -> int:
    """Serve the parent at the other end of the socket that `descriptor` numbers; return the exit code."""
    connection = socket.socket(fileno=int(descriptor))
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    channel = BlockingChannel[ToEngine](connection, ToEngine)
    incoming = channel.receive_all()
    first = next(incoming, None)
    if not isinstance(first, Configure):
        return 1
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(incoming, inbox), name="kvist-commands", daemon=True).start()
    try:
        engine = build(first.config, channel.send)
    except ConnectionError:
        return 0  # the parent is gone
    except Exception as error:
        if not isinstance(error, KvistError):
            log.exception("engine start failed")
        with suppress(ConnectionError):
            channel.send(StartFailed(WireError.of(error)))
        return 1
    release_free_memory()
    try:
        channel.send(Ready(engine.info))
        RealTimeDriver(engine.core, clock, inbox, channel.send, engine.tracer).run()
    except OSError:
        return 0  # the parent is gone
    except Exception as error:
        log.exception("engine process ends")
        channel.send(Crashed(f"{type(error).__name__}: {error}"))
        return 1
    finally:
        engine.close()
    return 0


def _read_commands(incoming: Iterator[ToEngine], inbox: queue.SimpleQueue[Command]) -> None:
    """Pass commands on until the parent is gone; then end the process, whatever it is doing."""
    try:
        for message in incoming:
            if isinstance(message, Configure):
                log.error("engine configured twice")
                break
            inbox.put(message)
    except FrameError:
        log.exception("engine process got garbage")
    except OSError:
        log.debug("engine process lost its parent")
    os._exit(0)  # a step may be running for seconds yet: do not wait for it
