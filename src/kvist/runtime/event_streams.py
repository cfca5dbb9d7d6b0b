"""The client's side of open requests: one buffer of events per request, filled by the engine, emptied by a consumer.

A slow consumer never holds up the engine: its events wait here and come out as one list. A buffer is bounded by the
request itself (its output tokens).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kvist.core.errors import KvistError
from kvist.core.request import FinishReason, NewRequest, RequestId
from kvist.core.request_events import Finished, RequestEvent, Scheduled, TokensSampled


class EventStream:
    """Events of one request in order, until `Finished`."""

    def __init__(self, request: NewRequest) -> None:
        self.request = request
        self.is_finished = False
        self._num_output_tokens = 0
        self._num_cached_tokens: int | None = None  # not scheduled yet
        self._pending: list[RequestEvent] = []
        self._error: KvistError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_exhausted(self) -> bool:
        """Whether the consumer has had all there will be."""
        return self.is_finished and not self._pending and self._error is None

    def push(self, event: RequestEvent) -> None:
        self._pending.append(event)
        if type(event) is TokensSampled:
            self._num_output_tokens += len(event.token_ids)
        elif type(event) is Scheduled:
            if self._num_cached_tokens is None:
                self._num_cached_tokens = event.num_cached_tokens
        elif type(event) is Finished:
            self.is_finished = True
        self._wake()

    def fail(self, reason: str, now_s: float) -> Finished:
        """End the stream because its engine is gone; return the event that says so."""
        finished = Finished(
            request_id=self.request.request_id,
            time_s=now_s,
            reason=FinishReason.ERROR,
            num_prompt_tokens=len(self.request.prompt_token_ids) // 4,
            num_output_tokens=self._num_output_tokens,
            num_cached_tokens=self._num_cached_tokens or 0,
            num_preemptions=0,
            error=reason,
        )
        self.push(finished)
        return finished

    def refuse(self, error: KvistError) -> None:
        """The engine did not take the request: the consumer gets `error`."""
        self._error = error
        self.is_finished = True
        self._wake()

    async def take(self) -> list[RequestEvent]:
        """Wait for events and return all there are. Raises the error the request was refused with."""
        while not self._pending:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events = self._pending
        self._pending = []
        return events

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class EventStreams:
    """All open streams of one client, by request id."""

    def __init__(self) -> None:
        self._by_id: dict[RequestId, EventStream] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._by_id

    def open(self, request: NewRequest) -> EventStream:
        stream = EventStream(request)
        self._by_id[request.request_id] = stream
        return stream

    def close(self, request_id: RequestId) -> None:
        self._by_id.pop(request_id, None)

    def request_ids(self) -> list[RequestId]:
        return list(self._by_id)

    def deliver(self, events: Iterable[RequestEvent]) -> None:
        """Hand each event to its stream; events of streams closed meanwhile are dropped."""
        by_id = self._by_id
        for event in events:
            stream = by_id.get(event.request_id)
            if stream is not None:
                stream.push(event)

    def refuse(self, request_id: RequestId, error: KvistError) -> None:
        stream = self._by_id.get(request_id)
        if stream is not None:
            stream.refuse(error)

    def fail_all(self, reason: str, now_s: float) -> list[Finished]:
        """End every unfinished stream with FinishReason.ERROR; return these events."""
        return [stream.fail(reason, now_s) for stream in self._by_id.values() if not stream.is_finished]
