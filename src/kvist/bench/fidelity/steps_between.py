"""Times the steps of the profile between the steps of a run, whose clock stands still meanwhile.

A shared machine's speed changes within seconds: what is timed before and after a run says little of it. Steps between
its own meet the same seconds, and yet hold nothing of the run itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import gcd
from typing import NamedTuple, Protocol

from kvist.core.clock import Clock

SHARE = 0.25  # seconds of the profile's steps for each second of the run


class Grid(Protocol):
    """Steps to time, such as a ProfileGrid."""

    @property
    def steps(self) -> Sequence[object]: ...

    def time_step(self, place: int) -> float:
        """Seconds of one step."""
        ...


class PausedClock:
    """A clock that stands still while it is told to."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paused_at_s: float | None = None
        self._stood_s = 0.0

    def now_s(self) -> float:
        return (self._clock.now_s() if self._paused_at_s is None else self._paused_at_s) - self._stood_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._paused_at_s = begun_s = self._clock.now_s()
        try:
            yield
        finally:
            self._paused_at_s = None
            self._stood_s += self._clock.now_s() - begun_s


class StepBetween(NamedTuple):
    """at_s: by the run's clock, from its start. place: in the grid."""

    at_s: float
    place: int
    seconds: float


class StepsBetween:
    """clock: of the run; it stands still while steps are timed, which is measured on `machine_clock`."""

    def __init__(self, grid: Grid, clock: PausedClock, machine_clock: Clock) -> None:
        self._grid = grid
        self._clock = clock
        self._machine_clock = machine_clock
        self._begun_s = clock.now_s()
        self._used_s = 0.0
        self._order = _mixed(len(grid.steps))
        self._timed: list[StepBetween] = []

    def time_step(self) -> None:
        """Time the next step of the profile, unless enough have been timed so far. To be called after each step."""
        if self._used_s <= SHARE * (self._clock.now_s() - self._begun_s):
            with self._clock.paused():
                begun_s = self._machine_clock.now_s()
                self._time()
                self._used_s += self._machine_clock.now_s() - begun_s

    def timed(self) -> list[StepBetween]:
        """All steps that were timed, in whole rounds, at least one: ends the round that has begun."""
        while not self._timed or len(self._timed) % len(self._order):
            self._time()
        return self._timed

    def _time(self) -> None:
        place = self._order[len(self._timed) % len(self._order)]
        at_s = self._clock.now_s() - self._begun_s
        self._timed.append(StepBetween(at_s, place, self._grid.time_step(place)))


def rounds_of(timed: Sequence[StepBetween], size: int) -> list[list[float]]:
    """Seconds of each step in the order of a grid of `size` steps, round by round."""
    rounds = [sorted(timed[start : start + size], key=lambda step: step.place) for start in range(0, len(timed), size)]
    return [[step.seconds for step in one] for one in rounds]


def _mixed(size: int) -> list[int]:
    """0 to `size` - 1 in an order in which neighbours lie far apart: a grid has like steps side by side."""
    stride = max(1, round(size * 0.382))  # the golden section spreads any number of them evenly
    while gcd(stride, size) > 1:
        stride += 1
    return [place * stride % size for place in range(size)]
