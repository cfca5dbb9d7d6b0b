"""Server-sent events: one write per batch of tokens, an error event if something breaks, and `[DONE]`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvist.core.errors import KvistError
from kvist.server.disconnect import DisconnectGuard
from kvist.server.error_responses import GenerationFailedError, error_body

DONE = b"data: [DONE]\n\n"
# A reader that takes nothing for this long is taken for gone; its tokens would only pile up.
STALLED_READER_S = 60.0

logger = logging.getLogger("kvist.server")


class EventStreamResponse(Response):
    """Streams `events` (each already in wire form, maybe several events at once), then `[DONE]`.

    Closes `events` when the client leaves, at any point, so that the requests behind it are aborted.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: dict[str, str]) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call_later = asyncio.get_running_loop().call_later
        async with aclosing(self._events), DisconnectGuard(receive) as guard:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for event in self._events:
                    stalled = call_later(STALLED_READER_S, guard.give_up)
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                    stalled.cancel()
            except KvistError as error:
                last = _error_event(error) + DONE
            except Exception:  # a bug must end this stream only, and visibly
                logger.exception("stream_failed")
                last = _error_event(GenerationFailedError("the server failed while answering")) + DONE
            else:
                last = DONE
            await send({"type": "http.response.body", "body": last, "more_body": False})


def _error_event(error: KvistError) -> bytes:
    return b"data: " + error_body(error) + b"\n\n"
