"""A reading position in a mapped GGUF file that cannot leave it, and the file's scalar types."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import CheckpointError

_MAX_ARRAY_LENGTH = 4 << 20
_MAX_ARRAY_ELEMENTS = 16 << 20  # over all arrays of a file: what bounds the memory that metadata takes

UINT32, STRING, ARRAY, UINT64 = 4, 8, 9, 10
SCALARS = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip


class GGUFCursor:
    """A reading position in a mapped file that cannot leave it."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0
        self._view = data.data
        self._num_elements_left = _MAX_ARRAY_ELEMENTS

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message}")

    def take(self, num_bytes: int, what: str) -> bytes:
        end = self.position + num_bytes
        if end > self.size:
            raise self.error(f"ends inside {what!r}: {end} bytes are needed, {self.size} are there")
        taken = bytes(self._view[self.position : end])
        self.position = end
        return taken

    def scalar(self, kind: int, what: str) -> Any:
        return SCALARS[kind].unpack(self.take(SCALARS[kind].size, what))[0]

    def scalars(self, kind: int, length: int, what: str) -> list[Any]:
        # Not by `struct.unpack`, which keeps a pattern for each length, in the midst of memory that vocabularies leave.
        scalar = SCALARS[kind]
        values: list[Any] = np.frombuffer(self.take(length * scalar.size, what), scalar.format).tolist()
        return values

    def count(self, maximum: int, least_bytes_each: int, what: str) -> int:
        """Read a count of things of at least `least_bytes_each` bytes; refuse one that cannot fit the file."""
        number: int = self.scalar(UINT64, what)
        if number > maximum or number * least_bytes_each > self.size - self.position:
            raise self.error(f"{number} {what!r} cannot be: at most {maximum}, and the file has {self.size} bytes")
        return number

    def array_length(self, least_bytes_each: int, what: str) -> int:
        length = self.count(_MAX_ARRAY_LENGTH, least_bytes_each, what)
        self._num_elements_left -= length
        if self._num_elements_left < 0:
            raise self.error(f"more than {_MAX_ARRAY_ELEMENTS} array elements in all")
        return length

    def string(self, maximum_bytes: int, what: str) -> str:
        num_bytes = self.scalar(UINT64, what)
        if num_bytes > maximum_bytes:
            raise self.error(f"{what!r} is a string of {num_bytes} bytes; at most {maximum_bytes} are possible")
        try:
            return self.take(num_bytes, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._not_utf8(what) from error

    def strings(self, length: int, what: str) -> list[str]:
        """Read `length` strings, fast: vocabularies have hundreds of thousands."""
        view = self._view
        try:
            return [str(view[begin:end], "utf-8") for begin, end in self._string_ranges(length, what)]
        except UnicodeDecodeError as error:
            raise self._not_utf8(what) from error

    def skip_strings(self, length: int, what: str) -> None:
        """Pass `length` strings, whatever bytes they are of."""
        for _ in self._string_ranges(length, what):
            pass

    def _string_ranges(self, length: int, what: str) -> Iterator[tuple[int, int]]:
        unpack: Callable[[memoryview, int], tuple[int]] = SCALARS[UINT64].unpack_from
        view, position, last = self._view, self.position, self.size - 8
        for _ in range(length):
            if position > last:
                raise self.error(f"ends inside {what!r}")
            (num_bytes,) = unpack(view, position)
            begin = position + 8
            position = begin + num_bytes
            if position > self.size:
                raise self.error(f"ends inside {what!r}")
            yield begin, position
        self.position = position

    def _not_utf8(self, what: str) -> CheckpointError:
        return self.error(f"{what!r} is not valid UTF-8")
