"""HTTP/1.1 to one server, made for measuring: what comes is stamped as it comes, before it is looked at.

The parser is httptools, which the server uses too; here is what lies between it and the sockets. docs/adr/0140 has the
comparison with aiohttp and httpx.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast
from urllib.parse import SplitResult, urlsplit

import httptools

from kvist.core.errors import ConfigError

MAX_ERROR_BYTES = 65536
MAX_GATHERED_BYTES = 1 << 26
now_s = time.perf_counter  # the clock of all measurements


class BodySink(Protocol):
    """Takes the body of an answer whose status is 200."""

    def feed(self, time_s: float, data: bytes) -> None: ...


class Gathered:
    """A sink that keeps the body."""

    def __init__(self) -> None:
        self.body = b""

    def feed(self, time_s: float, data: bytes) -> None:
        """Raises OSError for more than any route of a server has to say."""
        self.body += data
        if len(self.body) > MAX_GATHERED_BYTES:
            raise OSError(f"the answer has more than {MAX_GATHERED_BYTES} bytes")


class DisconnectedError(OSError):
    """The server closed the connection before its answer was complete."""


class StatusError(Exception):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.body = status, body


class Connection(asyncio.Protocol):
    """One connection, with one request on it at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[None] | None = None
        self._status, self._has_length = 0, False
        self.is_reusable = True
        self.has_answer = False  # whether a byte of the present request's answer has come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def request(self, head_and_body: Sequence[bytes], sink: BodySink, on_sent: Callable[[float], None]) -> None:
        """Send one request and feed its answer to `sink` until it is complete.

        on_sent: told the time at which the request was written. Raises StatusError, DisconnectedError, or what the
        sink raises; then, and where it is cancelled, the connection is closed.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self._error_body, self._status = sink, b"", 0
        self._has_length = self.has_answer = False
        self._answered = asyncio.get_running_loop().create_future()
        try:
            if self._transport.is_closing():
                raise DisconnectedError("the server closed the connection")
            on_sent(now_s())
            self._transport.writelines(head_and_body)
            await self._answered
        except BaseException:
            self.close()
            raise
        finally:
            self._answered = None
        if self._status != 200:
            raise StatusError(self._status, self._error_body)

    def close(self) -> None:
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._time_s = now_s()
        if self._answered is None:
            self.close()  # nobody asked
            return
        self.has_answer = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._finish(error.__context__ or error)  # what the sink raised
        except httptools.HttpParserError as error:
            self._finish(DisconnectedError(f"this is no HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_reusable = False
        if error is None and self._status and not self._has_length:
            self._finish(None)  # a body without a stated length ends with its connection
        else:
            self._finish(DisconnectedError(str(error) if error else "the server closed the connection"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status == 200:
            self._sink.feed(self._time_s, body)
        elif len(self._error_body) < MAX_ERROR_BYTES:
            self._error_body += body

    def on_message_complete(self) -> None:
        if self._status >= 200:  # else informational: the answer is still to come
            self.is_reusable = self.is_reusable and self._parser.should_keep_alive()
            self._finish(None)

    def _finish(self, error: BaseException | None) -> None:
        if self._answered is None or self._answered.done():
            return
        if error is None:
            self._answered.set_result(None)
        else:
            self._answered.set_exception(error)


class HttpServer:
    """A server by its URL: keeps the connections that are free and opens others as they are needed."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        parts = parse_url(base_url)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._root = parts.path
        self._host, self._secure = str(parts.hostname), parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        fields = {"host": parts.netloc.rpartition("@")[2], "accept": "*/*", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._heads: dict[tuple[str, str], bytes] = {}
        self._free: list[Connection] = []

    async def send(
        self,
        method: str,
        path: str,
        body: bytes,
        sink: BodySink,
        on_sent: Callable[[float], None] = lambda time_s: None,
    ) -> None:
        """One request and its answer; see Connection.request. Raises OSError if there is no connection to be had."""
        words = (self._head(method, path) + b"%d\r\n\r\n" % len(body), body)
        connection = self._take_free()
        if connection is not None:
            try:
                await self._send_on(connection, words, sink, on_sent)
                return
            except DisconnectedError:
                if connection.has_answer:
                    raise
                # A server may close an idle connection at the moment it is used again: no failure of the request.
        await self._send_on(await self._connect(), words, sink, on_sent)

    async def fetch(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of the answer."""
        gathered = Gathered()
        await self.send(method, path, body, gathered)
        return gathered.body

    async def open_connections(self, count: int) -> None:
        """Have `count` free connections, so that no request of a measurement waits for one."""
        while len(self._free) < count:
            self._free.append(await self._connect())

    async def _send_on(
        self, connection: Connection, words: Sequence[bytes], sink: BodySink, on_sent: Callable[[float], None]
    ) -> None:
        try:
            await connection.request(words, sink, on_sent)
        finally:
            if connection.is_reusable:
                self._free.append(connection)
            else:
                connection.close()

    def _take_free(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_reusable:
                return connection
        return None

    async def _connect(self) -> Connection:
        context = ssl.create_default_context() if self._secure else None
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, self._host, self._port, ssl=context
        )
        return connection

    def close(self) -> None:
        for connection in self._free:
            connection.close()
        self._free.clear()

    def _head(self, method: str, path: str) -> bytes:
        key = (method, path)
        if key not in self._heads:
            first = f"{method} {self._root}{path} HTTP/1.1\r\n"
            self._heads[key] = f"{first}{self._headers}content-type: application/json\r\ncontent-length: ".encode()
        return self._heads[key]


def parse_url(text: str) -> SplitResult:
    """The root of a server: without "/v1". Raises ConfigError."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        is_good = False
    if not is_good:
        raise ConfigError(f"--base-url must look like http://127.0.0.1:8000, not {text!r}")
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"), query="", fragment="")
