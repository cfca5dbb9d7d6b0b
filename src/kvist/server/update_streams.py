"""Runs the generations of one call side by side: a completion may bring several prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from kvist.runtime.generation_types import GenerationUpdate

Updates = AsyncIterator[GenerationUpdate]


async def start_all(streams: Sequence[Updates]) -> list[GenerationUpdate]:
    """The first update of each: after this the engine has taken them all. If one is refused, none goes on."""
    tasks = [asyncio.create_task(_first(stream)) for stream in streams]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await close_all(streams)
        raise


async def _first(stream: Updates) -> GenerationUpdate:
    return await anext(stream)


async def close_all(streams: Sequence[Updates]) -> None:
    """Abort what still runs. No effect on streams that have ended."""
    for stream in streams:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


async def merged(
    streams: Sequence[Updates], first: Sequence[GenerationUpdate]
) -> AsyncGenerator[tuple[int, GenerationUpdate], None]:
    """All updates with the index of their stream, as they come. Closing it aborts all streams."""
    try:
        for index, update in enumerate(first):
            yield index, update
        if len(streams) == 1:
            async for update in streams[0]:
                yield 0, update
            return
        async for pair in _interleave(streams):
            yield pair
    finally:
        await close_all(streams)


async def _interleave(streams: Sequence[Updates]) -> AsyncGenerator[tuple[int, GenerationUpdate], None]:
    queue: asyncio.Queue[tuple[int, GenerationUpdate | BaseException | None]] = asyncio.Queue(2 * len(streams))

    async def pump(index: int, stream: Updates) -> None:
        try:
            async for update in stream:
                await queue.put((index, update))
            await queue.put((index, None))
        except Exception as error:  # noqa: BLE001 - raised again by the reader below
            await queue.put((index, error))

    pumps = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        num_open = len(pumps)
        while num_open:
            index, item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield index, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
