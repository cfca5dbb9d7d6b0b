"""Several requests' event streams as one, for the samples of one prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from kvist.core.request import NewRequest
from kvist.core.request_events import RequestEvent
from kvist.runtime.engine_client import EngineClient


class MergedStreams:
    """Submits all requests at once and yields their events with the request's index."""

    def __init__(self, client: EngineClient, requests: Sequence[NewRequest]) -> None:
        self._client = client
        self._arrivals: asyncio.Queue[tuple[int, list[RequestEvent] | Exception]] = asyncio.Queue()
        self._silent = set(range(len(requests)))  # not heard of yet
        self._tasks = [asyncio.create_task(self._follow(index, request)) for index, request in enumerate(requests)]

    async def take(self) -> list[tuple[int, list[RequestEvent]]]:
        """Wait for events and return all there are; the first time, wait until every request was taken.

        Raises what a request was refused with.
        """
        taken: list[tuple[int, list[RequestEvent]]] = []
        while self._silent or not taken or not self._arrivals.empty():
            index, events = await self._arrivals.get()
            if isinstance(events, Exception):
                raise events
            self._silent.discard(index)
            taken.append((index, events))
        return taken

    def close(self, indices: Iterable[int]) -> None:
        """Stop following these requests; abort those that still run."""
        for index in indices:
            self._tasks[index].cancel()

    async def aclose(self) -> None:
        """Stop following all requests."""
        self.close(range(len(self._tasks)))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, index: int, request: NewRequest) -> None:
        try:
            async with aclosing(self._client.submit(request)) as stream:
                async for events in stream:
                    self._arrivals.put_nowait((index, events))
        except Exception as error:  # noqa: BLE001 - raised again by `take`
            self._arrivals.put_nowait((index, error))
