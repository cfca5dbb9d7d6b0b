"""One line on stderr that says how far a batch is."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from kvist.core.clock import Clock
from kvist.runtime.real_clock import RealClock

REDRAW_S = 0.1


class Progress:
    """Counts finished prompts and their output tokens; draws nothing unless `is_shown`."""

    def __init__(self, num_prompts: int, clock: Clock, *, is_shown: bool) -> None:
        self._num_prompts = num_prompts
        self._clock = clock
        self._is_shown = is_shown
        self._num_finished = 0
        self._num_tokens = 0
        self._begun_s = clock.now_s()
        self._drawn_s = self._begun_s

    def advance(self, num_tokens: int) -> None:
        """Count one more finished prompt and its output tokens."""
        self._num_finished += 1
        self._num_tokens += num_tokens
        now_s = self._clock.now_s()
        if self._is_shown and (now_s - self._drawn_s > REDRAW_S or self._num_finished == self._num_prompts):
            self._drawn_s = now_s
            rate = self._num_tokens / max(now_s - self._begun_s, 1e-9)
            sys.stderr.write(f"\r{self._num_finished}/{self._num_prompts} prompts, {rate:.1f} output tokens/s ")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown and self._num_finished:
            sys.stderr.write("\n")


def progress_bar(num_prompts: int, *, use_tqdm: bool | None) -> Progress:
    """Show progress if asked to; None: if stderr is a terminal and there is more than one prompt."""
    is_shown = sys.stderr.isatty() and num_prompts > 1 if use_tqdm is None else use_tqdm
    return Progress(num_prompts, RealClock(), is_shown=is_shown)
