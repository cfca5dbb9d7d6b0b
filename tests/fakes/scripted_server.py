"""A server process around a scripted engine: `python -m tests.fakes.scripted_server CONFIG_JSON START_S DRAIN_S`.

START_S: how long the engine takes to start; below 0 it fails to. DRAIN_S: how long requests go on, at most, once asked
to drain; the script itself hangs after its first word until then.
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
    config, start_s, drain_s = ServerConfig(**json.loads(sys.argv[1])), float(sys.argv[2]), float(sys.argv[3])

    async def start_backend(_listener: Callable[[EventBatch], None]) -> Backend:
        await asyncio.sleep(max(start_s, 0.0))
        if start_s < 0:
            raise CheckpointError("the model file is damaged")
        generator = ScriptedGenerator()
        drained = asyncio.Event()
        if drain_s:
            generator.pause_after, generator.pause = 1, drained

        async def close(*, drain_s: float) -> None:
            print(f"closing within {drain_s:g} s", flush=True)
            await asyncio.sleep(min(drain_s, float(sys.argv[3])))
            if drain_s < float(sys.argv[3]):
                generator.fail_after, generator.fail_with = 1, FinishReason.ABORT
            drained.set()

        generator.client.close = close
        return scripted_backend(generator)

    try:
        return run_server(config, start_backend, print_line=lambda line: print(line, flush=True))
    except KvistError as error:
        print(f"kvist: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
