"""Takes the memory of a KV pool from the system before it is needed, in a thread of its own.

Knows bytes only, and leaves what they hold as it is: steps may write them meanwhile.
"""

from __future__ import annotations

import ctypes
import logging
import os
from threading import Event, Thread

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import ConfigError
from kvist.weights.host_memory import free_memory_bytes

log = logging.getLogger(__name__)

PART_BYTES = 8 << 20  # some milliseconds: others wait as long for a place in the address space
PAUSE_S = 0.004  # between parts, so that the first requests have the cores
_MADV_POPULATE_WRITE = 23  # since Linux 5.14


class Preallocation:
    """Begins to make all of `data`, which begins a page, resident. Raises ConfigError where it cannot be had."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        free_bytes = free_memory_bytes()
        if data.nbytes > free_bytes:
            raise ConfigError(
                f"--preallocate-kv-cache asks for {data.nbytes >> 20} MiB of KV pool, and {free_bytes >> 20} MiB are "
                "free. Free some, lower --kv-cache-bytes, or leave it out: memory is then taken as it is used"
            )
        self._data = data
        self._is_closing = Event()
        try:
            self._take(0)
        except (OSError, AttributeError) as error:
            raise ConfigError(f"--preallocate-kv-cache needs Linux 5.14 or newer ({error}); leave it out") from error
        self._thread = Thread(target=self._take_rest, name="kvist-preallocate", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when all has been taken, or an error has been logged."""
        self._thread.join()

    def close(self) -> None:
        """Take no more."""
        self._is_closing.set()
        self._thread.join()

    def _take_rest(self) -> None:
        for begin in range(PART_BYTES, self._data.nbytes, PART_BYTES):
            if self._is_closing.wait(PAUSE_S):
                return
            try:
                self._take(begin)
            except OSError as error:
                log.error(
                    "KV pool not preallocated num_bytes=%d taken_bytes=%d error=%s", self._data.nbytes, begin, error
                )
                return
        log.info("KV pool preallocated num_bytes=%d", self._data.nbytes)

    def _take(self, begin: int) -> None:
        """Make the part at `begin` resident, without the interpreter's lock."""
        num_bytes = min(PART_BYTES, self._data.nbytes - begin)
        address = self._data.ctypes.data + begin
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        if madvise(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), _MADV_POPULATE_WRITE):
            error_number = ctypes.get_errno()
            raise OSError(error_number, os.strerror(error_number))
