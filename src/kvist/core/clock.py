"""Time as an injected dependency: the pure core is handed `now`, the edge reads one of these."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary origin, never going back."""

    def now_s(self) -> float: ...


class VirtualClock:
    """A clock that moves only when told to. Used by every simulation and unit test."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance_to(self, time_s: float) -> None:
        """Move to `time_s`. Raises ValueError if that lies in the past."""
        if time_s < self._now_s:
            raise ValueError(f"time would go back from {self._now_s} to {time_s}")
        self._now_s = time_s
