"""Runs the server: binds first, answers probes while the model loads, drains on a signal, stops on the second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime

import uvicorn
import uvloop

from kvist.config.server_config import ServerConfig
from kvist.core.errors import ConfigError
from kvist.core.request_events import EventBatch
from kvist.metrics.load_summary import summarize_load, take_snapshot
from kvist.metrics.recorder import MetricsRecorder
from kvist.server.app import build_app
from kvist.server.backend import Backend, ServerState
from kvist.server.event_log import configure_logging
from kvist.server.http_protocol import BoundedHttpProtocol
from kvist.server.identity import load_api_keys

LOAD_LOG_PERIOD_S = 10.0
LAST_WRITES_S = 5  # for answers that were finished or aborted when the drain ended
logger = logging.getLogger("kvist.server")

StartBackend = Callable[[Callable[[EventBatch], None]], Awaitable[Backend]]


def run_server(config: ServerConfig, start_backend: StartBackend, *, print_line: Callable[[str], None]) -> int:
    """Serve until told to stop; returns the exit code.

    start_backend: loads the model and starts the engine, whose event batches go to the listener it is handed.
    print_line: told when the server is ready. Raises ConfigError for a taken port or unreadable files, and whatever
    `start_backend` raises.
    """
    configure_logging(config.log_level, time.monotonic)
    state = ServerState(
        config=config,
        recorder=MetricsRecorder(),
        keys=load_api_keys(config.api_key, config.api_key_file),
        wall_time_s=lambda: datetime.now(UTC).timestamp(),
    )
    listener = bind(config.host, config.port)
    try:
        server = KvistServer(state, _uvicorn_config(state))
        return uvloop.run(server.run_until_stopped(listener, start_backend, print_line))
    finally:
        listener.close()


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything slow happens. Raises ConfigError saying what is wrong with it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on host {host!r}: {error}. Choose another --host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}. Choose another --port (0 takes a free one)"
        ) from error
    return listener


def _uvicorn_config(state: ServerState) -> uvicorn.Config:
    config = state.config
    if (config.ssl_keyfile is None) != (config.ssl_certfile is None):
        raise ConfigError("TLS needs both ssl_keyfile and ssl_certfile")
    settings = uvicorn.Config(
        build_app(state, time.monotonic),
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=LAST_WRITES_S,
    )
    try:
        settings.load()
    except OSError as error:  # also ssl.SSLError
        raise ConfigError(f"the TLS files cannot be used: {error}") from error
    return settings


class KvistServer(uvicorn.Server):
    """uvicorn's server with a start that does not block probes and a stop that lets running requests finish."""

    def __init__(self, state: ServerState, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._state = state
        self._signals: list[int] = []
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals belong to `run_until_stopped`."""
        yield

    async def run_until_stopped(
        self, listener: socket.socket, start_backend: StartBackend, print_line: Callable[[str], None]
    ) -> int:
        loop = asyncio.get_running_loop()
        start_s = time.monotonic()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        serving = asyncio.create_task(self.serve(sockets=[listener]))
        starting = asyncio.ensure_future(start_backend(self._state.on_events))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((serving, starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                self._state.backend = starting.result()
                print_line(self._ready_line(listener, time.monotonic() - start_s))
                summing_up = asyncio.create_task(self._log_load())
                await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
                summing_up.cancel()
            await self._drain()
        finally:
            starting.cancel()
            stopping.cancel()
            self.should_exit = True
            await asyncio.wait((serving, starting))
        serving.result()
        return 128 + self._signals[1] if len(self._signals) > 1 else 0

    async def _log_load(self) -> None:
        before, before_s = take_snapshot(self._state.recorder), time.monotonic()
        while True:
            await asyncio.sleep(LOAD_LOG_PERIOD_S)
            after, after_s = take_snapshot(self._state.recorder), time.monotonic()
            line = summarize_load(before, after, self._state.engine_facts(), after_s - before_s)
            if line is not None:
                logger.info("load %s", line)
            before, before_s = after, after_s

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        if len(self._signals) == 1:
            self._stop.set()
        else:
            self.force_exit = True
            self._stop_now.set()

    async def _drain(self) -> None:
        """Refuse new requests with 503; let the others finish within the timeout or until a second signal."""
        self._state.is_draining = True
        backend = self._state.backend
        if backend is None:
            return
        status = backend.client.status()
        timeout_s = self._state.config.shutdown_timeout
        logger.info("draining running=%d waiting=%d timeout_s=%g", status.num_running, status.num_waiting, timeout_s)
        closing = asyncio.create_task(backend.client.close(drain_s=timeout_s))
        stop_now = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait((closing, stop_now), return_when=asyncio.FIRST_COMPLETED)
        stop_now.cancel()
        if not closing.done():
            closing.cancel()
            await asyncio.wait((closing,))
            await backend.client.close(drain_s=0.0)
        else:
            closing.result()

    def _ready_line(self, listener: socket.socket, start_time_s: float) -> str:
        backend = self._state.backend
        assert backend is not None
        scheme = "https" if self.config.is_ssl else "http"
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        names = ", ".join(backend.generator.model.served_names)
        return f"kvist serves {names} at {scheme}://{shown}:{port} (ready in {start_time_s:.1f} s)"
