"""Times the phases of an engine's start and reports each as it begins."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kvist.core.clock import Clock
from kvist.runtime.messages import StartPhase

log = logging.getLogger(__name__)


class StartPhases:
    """One phase lasts until the next begins. `durations_s` holds the finished ones, in order."""

    def __init__(self, clock: Clock, report: Callable[[StartPhase], None]) -> None:
        self._clock = clock
        self._report = report
        self._current: str | None = None
        self._begun_s = 0.0
        self.durations_s: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """End the current phase, if any, and begin the next."""
        self.end()
        self._current = name
        self._begun_s = self._clock.now_s()
        self._report(StartPhase(name))

    def progress(self, done: int, total: int) -> None:
        """Report how much of the current phase is done."""
        if self._current is not None and total > 0:
            self._report(StartPhase(self._current, done / total))

    def end(self) -> None:
        """End the current phase."""
        if self._current is not None:
            duration_s = self._clock.now_s() - self._begun_s
            self.durations_s[self._current] = duration_s
            log.info("start phase=%s duration_s=%.3f", self._current, duration_s)
            self._current = None
