"""Wakes coroutines at their time to a fraction of a millisecond: event loops wait in whole ones."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from types import TracebackType
from typing import Self

from kvist.bench.http_connection import now_s


class PreciseTimer:
    """A thread that sleeps until the next time that anyone of one loop waits for. A context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name="timer", daemon=True)

    async def wait_until(self, time_s: float) -> None:
        """Return at `time_s` of the clock `now_s`, at once if it has passed."""
        if time_s <= now_s():
            return
        woken = self._loop.create_future()
        with self._changed:
            heapq.heappush(self._due, (time_s, next(self._order), woken))
            if self._due[0][2] is woken:
                self._changed.notify()
        await woken

    def _run(self) -> None:
        with self._changed:
            while self._is_open:
                if not self._due:
                    self._changed.wait()
                    continue
                wait_s = self._due[0][0] - now_s()
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                self._loop.call_soon_threadsafe(_wake, heapq.heappop(self._due)[2])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify()
        self._thread.join()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
