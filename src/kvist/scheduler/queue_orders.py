"""The waiting queue and its orders. Every order has a bound on how long a request can be overtaken.

Ranks are fixed when a request arrives, so a preempted request gets its old place back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import chain, islice

from kvist.core.request import NewRequest
from kvist.scheduler.slack import PrefillPace, is_in_time
from kvist.scheduler.tracked_request import Rank, TrackedRequest

OVERDUE_SHARE = 8  # under the order by slack
LPM_WINDOW = 64  # requests, in order of arrival, among which lpm looks for the longest match

MatchLength = Callable[[TrackedRequest], int]


def arrival_rank(new: NewRequest, now: float, sequence_number: int, ageing_s: float) -> Rank:
    """First come, first served."""
    return (0.0, sequence_number)


def priority_rank(new: NewRequest, now: float, sequence_number: int, ageing_s: float) -> Rank:
    """Lower priority number first; each `ageing_s` of waiting is worth one level.

    priority - waited / ageing_s orders like priority * ageing_s + arrival, which does not change with time.
    """
    return (new.priority * ageing_s + now, sequence_number)


class WaitingQueue:
    """Requests that wait, by rank. Adding and removing take O(log n) comparisons."""

    def __init__(self) -> None:
        self._by_rank: list[tuple[Rank, TrackedRequest]] = []  # ranks are unique: requests are never compared
        self.num_tokens = 0
        self.num_added = 0

    def __len__(self) -> int:
        return len(self._by_rank)

    def __iter__(self) -> Iterator[TrackedRequest]:
        """All requests, by rank."""
        return (request for _, request in self._by_rank)

    def add(self, request: TrackedRequest) -> None:
        insort(self._by_rank, (request.rank, request))
        self.num_added += 1
        self.num_tokens += request.num_tokens

    def remove(self, request: TrackedRequest) -> None:
        """Take `request` out. It must be in the queue, with as many tokens as when it was added."""
        index = bisect_left(self._by_rank, (request.rank,))
        if index == len(self._by_rank) or self._by_rank[index][1] is not request:
            raise KeyError(request.id)
        del self._by_rank[index]
        self.num_tokens -= request.num_tokens

    def in_order(self, now: float, match_length: MatchLength) -> Iterator[TrackedRequest]:
        """The requests in the order in which they are to be started. Lazy; do not change the queue meanwhile.

        match_length: how many tokens of a request the cache holds; asked only by the order that needs it.
        """
        return iter(self)


class OverdueFirstQueue(WaitingQueue):
    """Those that were preempted or waited `ageing_s` come first, by arrival; the rest in an order of its own."""

    def __init__(self, ageing_s: float) -> None:
        super().__init__()
        self._ageing_s = ageing_s

    def in_order(self, now: float, match_length: MatchLength) -> Iterator[TrackedRequest]:
        overdue = [request for request in self if self._is_overdue(request, now)]
        yield from overdue
        for request in self._others(now, match_length):
            if not self._is_overdue(request, now):
                yield request

    def _is_overdue(self, request: TrackedRequest, now: float) -> bool:
        return request.num_preemptions > 0 or now - request.queued_at_s >= self._ageing_s

    def _others(self, now: float, match_length: MatchLength) -> Iterator[TrackedRequest]:
        raise NotImplementedError


class ShortestPrefillFirstQueue(OverdueFirstQueue):
    """Fewest prompt tokens first: the best mean time to first token."""

    def __init__(self, ageing_s: float) -> None:
        super().__init__(ageing_s)
        self._by_length: list[tuple[int, Rank, TrackedRequest]] = []

    def add(self, request: TrackedRequest) -> None:
        super().add(request)
        insort(self._by_length, (request.num_tokens, request.rank, request))

    def remove(self, request: TrackedRequest) -> None:
        super().remove(request)
        del self._by_length[bisect_left(self._by_length, (request.num_tokens, request.rank))]

    def _others(self, now: float, match_length: MatchLength) -> Iterator[TrackedRequest]:
        return (request for _, _, request in self._by_length)


class LongestPrefixMatchQueue(OverdueFirstQueue):
    """Longest cached prefix first (RadixAttention): close to a depth-first walk of the tree, so prefixes stay hot."""

    def _others(self, now: float, match_length: MatchLength) -> Iterator[TrackedRequest]:
        everyone = iter(self)
        window = list(islice(everyone, LPM_WINDOW))
        yield from sorted(window, key=match_length, reverse=True)
        yield from everyone


class SlackQueue(WaitingQueue):
    """Whose prompt must be begun first; then, by arrival, those that are too late for their time to first token.

    Those that were preempted come before all. Of those too late, the oldest gets the first place in every
    OVERDUE_SHARE-th start once it has waited `ageing_s`: under a lasting overload, if it were first each time, those
    after it would all be too late as well.
    """

    def __init__(self, pace: PrefillPace) -> None:
        super().__init__()
        self._pace = pace
        self._by_start: list[tuple[float, Rank, TrackedRequest]] = []
        self._preempted: list[tuple[Rank, TrackedRequest]] = []
        self._num_removed = 0

    def add(self, request: TrackedRequest) -> None:
        super().add(request)
        if request.num_preemptions:
            insort(self._preempted, (request.rank, request))
        else:
            insort(self._by_start, (request.targets.start_by_s, request.rank, request))

    def remove(self, request: TrackedRequest) -> None:
        super().remove(request)
        if request.num_preemptions:
            del self._preempted[bisect_left(self._preempted, (request.rank,))]
        else:
            del self._by_start[bisect_left(self._by_start, (request.targets.start_by_s, request.rank))]
        self._num_removed += 1

    def in_order(self, now: float, match_length: MatchLength) -> Iterator[TrackedRequest]:
        slowdown = self._pace.slowdown
        late: Iterator[TrackedRequest]
        yield from [request for _, request in self._preempted]
        late = (request for request in self if not request.num_preemptions and not _is_in_time(request, now, slowdown))
        if self._by_start and self._num_removed % OVERDUE_SHARE == 0:
            oldest = next(late, None)
            if oldest is not None and now >= oldest.targets.overdue_at_s:
                yield oldest
            elif oldest is not None:
                late = chain((oldest,), late)
        # Whoever should have begun before now is late at any pace.
        for index in range(bisect_left(self._by_start, (now,)), len(self._by_start)):
            request = self._by_start[index][2]
            if _is_in_time(request, now, slowdown):
                yield request
        yield from late


def _is_in_time(request: TrackedRequest, now: float, slowdown: float) -> bool:
    """With nothing from the cache: a look into it for everyone who waits would cost more than it gains."""
    return is_in_time(request, request.num_tokens, now, slowdown)


def make_queue(queue_order: str, *, ageing_s: float, pace: PrefillPace) -> WaitingQueue:
    """Return an empty queue with the order of that name."""
    if queue_order == "lpm":
        return LongestPrefixMatchQueue(ageing_s)
    if queue_order == "shortest_prefill_first":
        return ShortestPrefillFirstQueue(ageing_s)
    if queue_order == "slack":
        return SlackQueue(pace)
    return WaitingQueue()
