"""Shows how an engine starts, on standard error: one changing line on a terminal, lines for slow phases elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:  # a server's process starts its engine before it loads code like this
    from kvist.runtime.messages import StartPhase

SLOW_PHASE_S = 2.0  # a phase that is over sooner needs no line


class StartDisplay(Protocol):
    """Listens to an engine's start phases. As a context manager it closes itself; phases after that are not shown."""

    def show(self, phase: StartPhase) -> None: ...

    def close(self) -> None:
        """Wipe what is shown. Safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


def start_display() -> StartDisplay:
    """The display that fits standard error."""
    if not sys.stderr.isatty():
        return _PlainPhases()
    # Here, because a server without a terminal should not wait for it.
    from kvist.cli.progress_bars import PhaseBar

    return PhaseBar()


class _PlainPhases:
    def __init__(self) -> None:
        self._name, self._begun_s, self._next_quarter = "", 0.0, 1
        self._is_open = True

    def show(self, phase: StartPhase) -> None:
        if phase.name != self._name:
            self._name, self._begun_s, self._next_quarter = phase.name, time.monotonic(), 1
        quarter = int(4 * (phase.fraction or 0.0))
        if self._is_open and quarter >= self._next_quarter and time.monotonic() - self._begun_s >= SLOW_PHASE_S:
            self._next_quarter = quarter + 1
            print(f"{phase.name}: {100 * (phase.fraction or 0.0):.0f}%", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
