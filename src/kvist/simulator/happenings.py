"""What is going to happen to a simulated cluster: whole nanoseconds of virtual time, and a fixed order within each."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import Any

from kvist.core.errors import ConfigError
from kvist.simulator.links import NS_PER_S

MAX_TIME_NS = 2**62  # 146 years; times are kept in 64 bits
MAX_IDLE_NS = 600 * NS_PER_S


class Kind(IntEnum):
    """What happens, in the order in which it happens at the same instant."""

    STEP_DONE = 0
    TRANSFER = 1
    REPLICA_DOWN = 2
    REPLICA_UP = 3
    ROLES = 4
    MIGRATION = 5
    ARRIVAL = 6
    WAIT_END = 7


LOOKS = (Kind.ROLES, Kind.MIGRATION, Kind.WAIT_END)  # come whether anything else happens or not


class Happenings:
    """A queue by time, then by kind, then in the order of pushing. Payloads are what their kind says."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Any]] = []
        self._num_pushed = 0
        self.last_change_ns = 0  # when something other than a look happened last

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_ns(self) -> int:
        return self._heap[0][0]

    @property
    def is_idle(self) -> bool:
        """Whether what is left waits for something that will not come, such as a replica that is gone for good."""
        return self.next_ns - self.last_change_ns > MAX_IDLE_NS and all(each[1] in LOOKS for each in self._heap)

    def push(self, time_ns: int, kind: Kind, payload: Any) -> None:
        if time_ns > MAX_TIME_NS:
            raise ConfigError(
                "the simulation passes 146 years of virtual time: requests come too seldom, or a step takes too long"
            )
        self._num_pushed += 1
        heapq.heappush(self._heap, (time_ns, int(kind), self._num_pushed, payload))

    def push_repeated(self, kind: Kind, interval_s: float | None, now_ns: int) -> None:
        """What is looked at in intervals, the next time; nothing where there is no interval."""
        if interval_s is not None:
            self.push(now_ns + round(interval_s * NS_PER_S), kind, None)

    def pop(self) -> tuple[Kind, Any]:
        time_ns, kind, _, payload = heapq.heappop(self._heap)
        if kind not in LOOKS:
            self.last_change_ns = time_ns
        return Kind(kind), payload
