"""Events in virtual time. Equal times keep a defined order: by kind, then in the order of pushing."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class EventKind(IntEnum):
    """What happens, in the order in which it happens at the same instant.

    A step that ends frees its blocks before anything that arrives at that instant is looked at.
    """

    STEP_DONE = 0
    ABORT = 1
    ARRIVAL = 2


class EventQueue(Generic[T]):
    """A priority queue over (time, kind, sequence number). Payloads are never compared."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, EventKind, int, T]] = []
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, time_s: float, kind: EventKind, payload: T) -> None:
        heapq.heappush(self._heap, (time_s, kind, self._num_pushed, payload))
        self._num_pushed += 1

    def next_time_s(self) -> float | None:
        """Time of the next event, or None."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[float, EventKind, T]:
        """Take the next event. Raises IndexError when empty."""
        time_s, kind, _, payload = heapq.heappop(self._heap)
        return time_s, kind, payload
