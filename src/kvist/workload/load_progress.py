"""Which request of a load comes next, and when: a follow-up's time is known once the request before it has ended.

One place for all that replay a load: the in-process runner, the HTTP client and the simulator.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from kvist.workload.trace_record import TraceRecord


class LoadProgress:
    """The requests of a load that are due or will be. Times are seconds after the start of the load."""

    def __init__(self, records: Sequence[TraceRecord]) -> None:
        self._records = records
        self._followers: dict[int, list[TraceRecord]] = {}
        self._due: list[tuple[float, int]] = []
        self.num_unfinished = len(records)
        for record in records:
            if record.after is None:
                self._due.append((record.arrival_s, record.index))
            else:
                self._followers.setdefault(record.after, []).append(record)
        heapq.heapify(self._due)

    @property
    def next_time_s(self) -> float | None:
        """When the next known request comes; None while all others follow requests that have not ended."""
        return self._due[0][0] if self._due else None

    def take_due(self, now_s: float) -> list[tuple[float, TraceRecord]]:
        """The requests due by `now_s`, each once, with the time at which it was due, in order of time."""
        taken = []
        while self._due and self._due[0][0] <= now_s:
            time_s, index = heapq.heappop(self._due)
            taken.append((time_s, self._records[index]))
        return taken

    def note_ended(self, index: int, now_s: float) -> None:
        """Request `index` has its whole answer: those that follow it come their pause later."""
        self.num_unfinished -= 1
        for record in self._followers.get(index, ()):
            heapq.heappush(self._due, (now_s + record.arrival_s, record.index))
