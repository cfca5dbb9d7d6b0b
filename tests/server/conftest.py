"""A server around a scripted engine: in memory, or on a loopback port for what needs a real connection."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest
import uvicorn
from tests.fakes.scripted_generation import ScriptedGenerator, scripted_backend

from kvist.config.server_config import ServerConfig
from kvist.metrics.recorder import MetricsRecorder
from kvist.server.app import build_app
from kvist.server.backend import ServerState
from kvist.server.http_protocol import BoundedHttpProtocol
from kvist.server.identity import load_api_keys

# Of requests that name none: 5 s of silence are no fault on a busy machine.
httpx._config.DEFAULT_TIMEOUT_CONFIG.read = httpx._config.DEFAULT_TIMEOUT_CONFIG.connect = 100.0


@dataclass
class Served:
    """A running server, its state, and the script behind it."""

    url: str
    state: ServerState
    generator: ScriptedGenerator

    def eventually(self, condition: Callable[[], bool]) -> bool:
        end_s = time.monotonic() + 100
        while time.monotonic() < end_s:
            if condition():
                return True
            time.sleep(0.01)
        return False


def make_state(generator: ScriptedGenerator, config: ServerConfig) -> ServerState:
    return ServerState(
        config=config,
        recorder=MetricsRecorder(),
        keys=load_api_keys(config.api_key, config.api_key_file),
        wall_time_s=lambda: 1_700_000_000.0,
        backend=scripted_backend(generator),
    )


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    stops: list[Callable[[], None]] = []

    def start(generator: ScriptedGenerator | None = None, **options: object) -> Served:
        generator = generator or ScriptedGenerator()
        state = make_state(generator, ServerConfig(**options))
        listener = socket.create_server(("127.0.0.1", 0))
        app = build_app(state, time.monotonic)
        settings = uvicorn.Config(app, http=BoundedHttpProtocol, ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()

        def stop() -> None:
            server.should_exit = True
            server.force_exit = True
            thread.join(100)

        stops.append(stop)
        served = Served(f"http://127.0.0.1:{listener.getsockname()[1]}", state, generator)
        assert served.eventually(lambda: server.started)
        return served

    yield start
    for stop in stops:
        stop()


@pytest.fixture
def call() -> Callable[..., httpx.Response]:
    """Send one request to a fresh app in memory."""

    def send(
        method: str,
        path: str,
        *,
        generator: ScriptedGenerator | None = None,
        options: dict[str, object] | None = None,
        change: Callable[[ServerState], None] = lambda state: None,
        **request: object,
    ) -> httpx.Response:
        async def run() -> httpx.Response:
            state = make_state(generator or ScriptedGenerator(), ServerConfig(**(options or {})))
            change(state)
            transport = httpx.ASGITransport(app=build_app(state, time.monotonic))
            async with httpx.AsyncClient(transport=transport, base_url="http://kvist") as client:
                return await client.request(method, path, **request)

        return asyncio.run(run())

    return send
