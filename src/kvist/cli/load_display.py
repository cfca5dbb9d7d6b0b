"""Shows how a load is going, on standard error: one changing line on a terminal, a line now and then elsewhere.

Drawn by hand: rich takes milliseconds to draw, in which the load's clock would stand still.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kvist.bench.client_run import Progress

BAR_CELLS = 20
PLAIN_EVERY_S = 10.0


class LoadDisplay:
    """See the module."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._what = ""
        self._next_s = PLAIN_EVERY_S

    def phase(self, what: str) -> None:
        self._what, self._next_s = what, PLAIN_EVERY_S
        if self._is_terminal:
            self._draw(f"{what} ...")
        else:
            print(f"kvist: {what}", file=sys.stderr, flush=True)

    def progress(self, progress: Progress) -> None:
        line = f"{self._what}: {progress_text(progress)}"
        if self._is_terminal:
            self._draw(f"{_bar(progress)} {line}")
        elif progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + PLAIN_EVERY_S
            print(f"kvist: {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._is_terminal:
            self._draw("")

    def _draw(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\x1b[K{line[:width]}")
        sys.stderr.flush()


@contextmanager
def load_display() -> Iterator[LoadDisplay]:
    display = LoadDisplay(is_terminal=sys.stderr.isatty())
    try:
        yield display
    finally:
        display.close()


def progress_text(progress: Progress) -> str:
    words = [f"{progress.num_done} of {progress.num_requests} done, {progress.num_running} running"]
    if progress.num_failed:
        words.append(f"{progress.num_failed} failed")
    if progress.ttft_s is not None:
        words.append(f"TTFT {progress.ttft_s * 1e3:.0f} ms")
    if progress.tpot_s is not None:
        words.append(f"TPOT {progress.tpot_s * 1e3:.1f} ms")
    return ", ".join([*words, f"{progress.elapsed_s:.0f} s"])


def _bar(progress: Progress) -> str:
    ended = progress.num_done + progress.num_failed
    cells = BAR_CELLS * ended // max(progress.num_requests, 1)
    return "[" + "#" * cells + "." * (BAR_CELLS - cells) + "]"
