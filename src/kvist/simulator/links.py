"""Transfers over links that they share, in virtual time. A transfer takes its whole path at once, at one rate.

fair: each link is split evenly among the transfers on it; a transfer goes at the smallest share on its path.
fifo: a link carries one transfer after another, in the order in which they began.
All times are whole nanoseconds, and the arithmetic between them has one order, so results are equal on every host.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

NS_PER_S = 1_000_000_000


@dataclass(slots=True, eq=False)
class _Flow(Generic[T]):
    path: Sequence[int]
    remaining_bytes: float
    not_before_ns: int
    payload: T
    bytes_per_s: float = 0.0
    since_ns: int = 0
    ends_ns: int = 0


class Links(Generic[T]):
    """Links 0 .. n - 1 by their bandwidths in bytes per second. `payload` tells the caller whose transfer ended."""

    def __init__(self, bytes_per_s: Sequence[float], *, latency_ns: int, is_fifo: bool) -> None:
        self._bytes_per_s = list(bytes_per_s)
        self._latency_ns = latency_ns
        self._is_fifo = is_fifo
        self._free_ns = [0] * len(bytes_per_s)
        self._on_link: list[list[_Flow[T]]] = [[] for _ in bytes_per_s]
        self._flows: list[_Flow[T]] = []
        self._landing: list[tuple[int, int, T]] = []  # sent, and on their way
        self._num_begun = 0
        self.num_bytes = [0] * len(bytes_per_s)  # carried by each link, of all time

    def begin(self, path: Sequence[int], num_bytes: int, now_ns: int, payload: T, *, not_before_ns: int = 0) -> None:
        """Send `num_bytes` over all links of `path`. It ends at `not_before_ns` at the earliest."""
        for link in path:
            self.num_bytes[link] += num_bytes
        if self._is_fifo or not path:
            start_ns = max([now_ns, *(self._free_ns[link] for link in path)])
            rate = min((self._bytes_per_s[link] for link in path), default=float("inf"))
            ends_ns = start_ns + _duration_ns(num_bytes, rate)
            for link in path:
                self._free_ns[link] = ends_ns
            self._land(ends_ns, not_before_ns, payload)
            return
        flow = _Flow(path, float(num_bytes), not_before_ns, payload, since_ns=now_ns)
        self._flows.append(flow)
        for link in path:
            self._on_link[link].append(flow)
        self._share(path, now_ns)

    def next_end_ns(self) -> int | None:
        """When the next thing happens to a transfer, if nothing begins before."""
        ends = [flow.ends_ns for flow in self._flows]
        if self._landing:
            ends.append(self._landing[0][0])
        return min(ends, default=None)

    def take_ended(self, now_ns: int) -> list[T]:
        """The transfers that have ended by `now_ns`, in the order of their ends."""
        while sent := [flow for flow in self._flows if flow.ends_ns <= now_ns]:
            ends_ns = min(flow.ends_ns for flow in sent)
            for flow in [flow for flow in sent if flow.ends_ns == ends_ns]:
                self._flows.remove(flow)
                for link in flow.path:
                    self._on_link[link].remove(flow)
                self._share(flow.path, ends_ns)
                self._land(ends_ns, flow.not_before_ns, flow.payload)
        ended = []
        while self._landing and self._landing[0][0] <= now_ns:
            ended.append(heapq.heappop(self._landing)[2])
        return ended

    def _land(self, sent_ns: int, not_before_ns: int, payload: T) -> None:
        self._num_begun += 1
        heapq.heappush(self._landing, (max(sent_ns + self._latency_ns, not_before_ns), self._num_begun, payload))

    def _share(self, path: Sequence[int], now_ns: int) -> None:
        """Renew the rates of all transfers that share a link with `path`."""
        for link in path:
            for flow in self._on_link[link]:
                flow.remaining_bytes -= flow.bytes_per_s * (now_ns - flow.since_ns) / NS_PER_S
                flow.since_ns = now_ns
                flow.bytes_per_s = min(self._bytes_per_s[link] / len(self._on_link[link]) for link in flow.path)
                flow.ends_ns = now_ns + _duration_ns(max(flow.remaining_bytes, 0.0), flow.bytes_per_s)


def _duration_ns(num_bytes: float, bytes_per_s: float) -> int:
    return -int(-num_bytes * NS_PER_S // bytes_per_s)
