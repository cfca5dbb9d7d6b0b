"""A server process around a scripted engine: `python -m tests.fakes.scripted_server CONFIG_JSON START_S HOLDS`.

START_S: how long the engine takes to start; below 0 it fails to. HOLDS: 1 if answers hang after their first word until
something is written to standard input; a drain waits for that, as long as it may.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

from tests.fakes.scripted_generation import ScriptedGenerator, scripted_backend

from kvist.config.server_config import ServerConfig
from kvist.core.errors import CheckpointError, KvistError
from kvist.core.request import FinishReason
from kvist.core.request_events import EventBatch
from kvist.server.backend import Backend
from kvist.server.serve import run_server


def main() -> int:
    config, start_s, holds = ServerConfig(**json.loads(sys.argv[1])), float(sys.argv[2]), sys.argv[3] == "1"

    async def start_backend(_listener: Callable[[EventBatch], None]) -> Backend:
        await asyncio.sleep(max(start_s, 0.0))
        if start_s < 0:
            raise CheckpointError("the model file is damaged")
        generator = ScriptedGenerator()
        go_on = asyncio.Event()
        if holds:
            generator.pause_after, generator.pause = 1, go_on
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), go_on.set)

        async def close(*, drain_s: float) -> None:
            print(f"closing within {drain_s:g} s", flush=True)
            if holds:
                try:
                    await asyncio.wait_for(go_on.wait(), drain_s)
                except TimeoutError:
                    generator.fail_after, generator.fail_with = 1, FinishReason.ABORT
                    go_on.set()

        generator.client.close = close
        return scripted_backend(generator)

    try:
        return run_server(config, start_backend, print_line=lambda line: print(line, flush=True))
    except KvistError as error:
        print(f"kvist: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
