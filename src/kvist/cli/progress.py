"""Shows how far something long is, on standard error: bars on a terminal, some plain lines otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvist.cli.units import format_bytes

ShowProgress = Callable[[str, int, int | None], None]  # what, bytes done, bytes in all if known
WORTH_A_LINE_BYTES = 16 << 20  # smaller tasks are over before a line is read


@contextmanager
def progress_display() -> Iterator[ShowProgress]:
    """Hand out a callback for any number of tasks, told apart by name. Nothing is shown until it is called."""
    if not sys.stderr.isatty():
        yield _PlainLines()
        return
    # Here, because a server without a terminal should not wait for it.
    from kvist.cli.progress_bars import progress_bars

    with progress_bars() as show:
        yield show


class _PlainLines:
    def __init__(self) -> None:
        self._next_done: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if max(done, total or 0) < WORTH_A_LINE_BYTES or done < self._next_done.get(what, 0):
            return
        step = max((total or 0) // 4, WORTH_A_LINE_BYTES)
        self._next_done[what] = min(done + step, max(total or done + step, done + 1))
        of_total = f" of {format_bytes(total)}" if total else ""
        print(f"{what}: {format_bytes(done)}{of_total}", file=sys.stderr, flush=True)
