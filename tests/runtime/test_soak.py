"""Nothing grows with the number of requests served."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.runtime.clients import (
    COMMAND,
    events_of,
    is_at_rest,
    new_request,
    simulated_config,
)

from kvist.runtime.process_link import ProcessLink
from kvist.runtime.real_clock import RealClock
from kvist.runtime.supervised_client import SupervisedEngineClient

ALLOWED_GROWTH_BYTES = 6 << 20  # allocators keep some slack
WARM_UP, ROUND = 800, 3200  # requests


def resident_bytes(pid: int | str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


async def one_request(client: SupervisedEngineClient, serial: int) -> None:
    """A prompt that nobody sent before; every fifth client leaves early."""
    prompt = [serial % 250, serial // 250 % 250, *range(40)]
    request = new_request(f"r{serial}", prompt, max_tokens=10)
    if serial % 5:
        await events_of(client, request)
        return
    async with aclosing(client.submit(request)) as stream:
        await anext(stream)


async def serve(client: SupervisedEngineClient, serials: range) -> None:
    for start in range(serials.start, serials.stop, 40):
        await asyncio.gather(*(one_request(client, serial) for serial in range(start, min(start + 40, serials.stop))))


@pytest.mark.slow
def test_memory_stays_flat_over_thousands_of_distinct_requests() -> None:
    async def scenario() -> None:
        link = ProcessLink(COMMAND, simulated_config())
        client = SupervisedEngineClient(lambda: link, RealClock())
        await client.start()
        assert link.pid is not None
        await serve(client, range(WARM_UP))
        growths: dict[int | str, list[int]] = {link.pid: [], "self": []}
        for start in range(WARM_UP, WARM_UP + 3 * ROUND, ROUND):
            before = {process: resident_bytes(process) for process in growths}
            await serve(client, range(start, start + ROUND))
            for process, grown in growths.items():
                grown.append(resident_bytes(process) - before[process])
            # What leaks grows in every round; an allocator that takes another arena does so in one.
            if all(min(grown) < ALLOWED_GROWTH_BYTES for grown in growths.values()):
                break
        else:
            raise AssertionError(f"memory grew in each of three rounds, by process: {growths} bytes")
        async with asyncio.timeout(100):
            while not is_at_rest(client.status()):
                await asyncio.sleep(0.01)
        await client.close(drain_s=0.0)

    asyncio.run(scenario())
