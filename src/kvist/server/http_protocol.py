"""Bounds on the head of an HTTP request, which uvicorn leaves open: how long and how slow it may be."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvist.core.errors import InvalidRequestError
from kvist.server.error_responses import error_body

MAX_HEAD_BYTES = 64 << 10
HEAD_TIMEOUT_S = 20.0
BODY_TIMEOUT_S = 300.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection that sends a head over MAX_HEAD_BYTES, or takes too long over its head or body."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: handed on to uvicorn
        super().__init__(*args, **kwargs)
        self._num_head_bytes = 0
        self._in_head = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        super().connection_made(transport)
        self._expect_within(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._num_head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"the head of the request is longer than {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, in the shape of all errors, and hang up."""
        body = error_body(InvalidRequestError(msg))
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Stay silent: an offer to upgrade may be passed over, and the request is answered as it is."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_within(HEAD_TIMEOUT_S)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expect_within(BODY_TIMEOUT_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._num_head_bytes = 0
        self._expect_nothing()
        super().on_message_complete()

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(seconds, self._close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
