"""Memory that nothing uses any more but the process still holds."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def release_free_memory() -> None:
    """Give what the C library keeps for later allocations back to the system, where it can (glibc): takes milliseconds.

    Worth it after work that took much for a short time, as a start does.
    """
    with suppress(OSError, AttributeError, TypeError):  # a system without it
        ctypes.CDLL(None).malloc_trim(0)
