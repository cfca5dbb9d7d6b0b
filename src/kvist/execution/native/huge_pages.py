"""Memory in huge pages, for weights: a step reads them all, and a processor does not read ahead past a page's end."""

from __future__ import annotations

import mmap
from contextlib import suppress
from io import RawIOBase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE_BYTES = 2 << 20
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")

Bytes = NDArray[np.uint8]


def has_huge_pages() -> bool:
    """Whether this system gives them to a process that asks."""
    try:
        return "[never]" not in _SETTING.read_text(encoding="ascii")
    except OSError:
        return False


def huge_room(num_bytes: int) -> Bytes:
    """Zeroed memory, in huge pages as far as it fills them and the system has them.

    Raises MemoryError if there is not so much.
    """
    try:
        room = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        raise MemoryError(f"no room for {num_bytes} bytes") from error
    data = np.frombuffer(room, np.uint8)
    begin = -data.__array_interface__["data"][0] % HUGE_PAGE_BYTES
    end = begin + num_bytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if has_huge_pages():
        with suppress(OSError):  # a kernel without them
            room.madvise(mmap.MADV_NOHUGEPAGE, end)  # the rest would take a whole one
            if end > begin:
                room.madvise(mmap.MADV_HUGEPAGE, begin, end - begin)
    return data[begin : begin + num_bytes]


def read_to_huge_pages(file: RawIOBase, num_bytes: int) -> Bytes:
    """The file's first `num_bytes`, or those that it still has, in memory of their own."""
    data = huge_room(num_bytes)
    file.seek(0)
    num_read = 0
    while num_read < num_bytes and (more := file.readinto(data[num_read:].data)):
        num_read += more
    return data[:num_read]
