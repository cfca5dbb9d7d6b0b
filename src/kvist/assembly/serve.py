"""Joins the HTTP server with an engine."""

from __future__ import annotations

from collections.abc import Callable

from kvist.assembly.start_engine import RunningEngine, start_engine
from kvist.config.engine_config import EngineConfig
from kvist.config.server_config import ServerConfig
from kvist.core.request_events import EventBatch
from kvist.runtime.engine_launch import EngineChild
from kvist.runtime.messages import StartPhase
from kvist.server.backend import Backend
from kvist.server.serve import run_server


def serve(
    config: EngineConfig,
    server: ServerConfig,
    *,
    child: EngineChild | None = None,
    print_line: Callable[[str], None],
    on_phase: Callable[[StartPhase], None] | None = None,
    on_ready: Callable[[RunningEngine], None] | None = None,
) -> int:
    """Serve until told to stop; return the exit code.

    child: a process launched with ENGINE_COMMAND, for the first engine; whoever launched it discards it.
    on_phase: told of each phase of the engine's start. on_ready: handed the engine just before `print_line` is told.

    Raises KvistError for whatever keeps server or engine from starting.
    """

    async def start_backend(listener: Callable[[EventBatch], None]) -> Backend:
        engine = await start_engine(
            config, engine_client=server.engine_client, child=child, on_phase=on_phase, listener=listener
        )
        if on_ready is not None:
            on_ready(engine)
        info = engine.client.info
        return Backend(
            client=engine.client,
            generator=engine.generator,
            encoder=engine.encoder,
            startup_phases_s=engine.start_phases_s,
            cache_config={
                "block_size": str(info.block_size),
                "num_blocks": str(info.num_blocks),
                "kv_cache_bytes": str(info.kv_cache_bytes),
                "enable_prefix_caching": str(config.cache.enable_prefix_caching),
                "eviction_policy": config.cache.eviction_policy,
            },
        )

    return run_server(server, start_backend, print_line=print_line)
