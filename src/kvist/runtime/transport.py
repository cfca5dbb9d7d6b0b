"""Typed messages over a stream socket: a length, then msgpack of one of the known types. Nothing else is accepted.

A frame is 4 bytes little-endian length and that many bytes of payload. Whoever receives anything else (a length out
of bounds, bytes that are not one of the expected types) gets FrameError and must close the connection.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from kvist.core.errors import KvistError

MAX_FRAME_BYTES = 64 << 20  # a prompt of 16M tokens; an ordinary turn is some kilobytes
_LENGTH_BYTES = 4
_RECEIVE_BYTES = 1 << 18

M = TypeVar("M")


class FrameError(Exception):
    """The peer sent something that is not a frame of a known message."""


class FrameEncoder:
    """Encodes messages to frames. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()

    def encode(self, message: Any) -> bytearray:  # Any: every Struct of messages.py
        """Return the frame in a buffer that the next call overwrites. Raises FrameError if it is too large."""
        self._encoder.encode_into(message, self._buffer, _LENGTH_BYTES)
        num_bytes = len(self._buffer) - _LENGTH_BYTES
        if num_bytes > MAX_FRAME_BYTES:
            raise FrameError(f"a message of {num_bytes} bytes exceeds the frame limit of {MAX_FRAME_BYTES}")
        self._buffer[:_LENGTH_BYTES] = num_bytes.to_bytes(_LENGTH_BYTES, "little")
        return self._buffer


class FrameDecoder(Generic[M]):
    """Cuts a byte stream into messages of `message_type` (a union of tagged Structs)."""

    def __init__(self, message_type: Any) -> None:  # Any: a union is not a type to the type checker
        self._decoder = msgspec.msgpack.Decoder(message_type)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Add received bytes and yield the messages that are now complete. Raises FrameError; then close."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _LENGTH_BYTES:
                num_bytes = int.from_bytes(buffer[start : start + _LENGTH_BYTES], "little")
                if num_bytes > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {num_bytes} bytes exceeds the limit of {MAX_FRAME_BYTES}")
                end = start + _LENGTH_BYTES + num_bytes
                if len(buffer) < end:
                    break
                with memoryview(buffer) as view:
                    message = self._decode(view[start + _LENGTH_BYTES : end])
                start = end
                yield message
        finally:
            del buffer[:start]

    def _decode(self, payload: memoryview) -> M:
        try:
            with payload:
                message: M = self._decoder.decode(payload)
        except (msgspec.MsgspecError, KvistError, RecursionError, ValueError, OverflowError) as error:
            raise FrameError(f"a frame is not a known message: {error}") from error
        return message


class BlockingChannel(Generic[M]):
    """A connected socket used by threads: one may send while another receives."""

    def __init__(self, connection: socket.socket, message_type: Any) -> None:  # Any: see FrameDecoder
        self._connection = connection
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder[M](message_type)

    def send(self, message: Any) -> None:  # Any: every Struct of messages.py
        """Send one message. Raises OSError if the peer is gone."""
        self._connection.sendall(self._encoder.encode(message))

    def receive_all(self) -> Iterator[M]:
        """Yield messages until the peer closes. Raises FrameError on garbage, OSError on a broken connection."""
        while data := self._connection.recv(_RECEIVE_BYTES):
            yield from self._decoder.feed(data)
