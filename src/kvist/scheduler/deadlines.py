"""Who must have ended by when."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from kvist.core.request import RequestId
from kvist.scheduler.tracked_request import TrackedRequest


class Deadlines:
    """Deadlines of requests. requests: all that are known, by id, kept by their owner; others are passed over."""

    def __init__(self, requests: Mapping[RequestId, TrackedRequest]) -> None:
        self._requests = requests
        self._due: list[tuple[float, int, RequestId]] = []

    def __len__(self) -> int:
        """Entries held, some of requests that have ended."""
        return len(self._due)

    def add(self, deadline_s: float, request: TrackedRequest) -> None:
        if len(self._due) > 2 * len(self._requests) + 64:  # most are of requests that have ended
            self._due = [entry for entry in self._due if entry[2] in self._requests]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (deadline_s, request.rank[1], request.id))

    def expired(self, now: float) -> Iterator[tuple[TrackedRequest, float]]:
        """Take out the requests whose deadline has come, each with the seconds since."""
        while self._due and self._due[0][0] <= now:
            deadline_s, number, request_id = heapq.heappop(self._due)
            request = self._requests.get(request_id)
            if request is not None and request.rank[1] == number:  # not another one that has taken over the id
                yield request, now - deadline_s
