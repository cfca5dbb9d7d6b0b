"""The seam between what a step means and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvist.core.step_plan import BlockMove
from kvist.execution.logits import Logits
from kvist.execution.step_batch import StepBatch

# Gets tiles of (indices into logit_rows, their logits), in order. The logits are only lent.
TakeLogits = Callable[[range, Logits], None]


class Runner(Protocol):
    """Computes batches of one model over the KV blocks it owns. Knows nothing of requests or sampling."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def description(self) -> str:
        """All that the speed of a step depends on here: what computes, with what, on how many threads."""
        ...

    @property
    def weight_bytes(self) -> int: ...

    @property
    def workspace_bytes(self) -> int | None:
        """What a step may use besides weights and KV; None if only the memory model knows."""
        ...

    def resize(self, max_num_tokens: int) -> None:
        """Make ready for steps of up to `max_num_tokens` tokens, padding included."""
        ...

    def preallocate(self) -> None:
        """Begin to take the KV pool's memory from the system. Raises ConfigError if it is not to be had."""
        ...

    def run(
        self, batch: StepBatch, logit_rows: NDArray[np.int64], take_logits: TakeLogits, *, timed: bool = False
    ) -> NDArray[np.bool_]:
        """Compute one batch; logit_rows are the batch rows whose logits are wanted.

        timed: add up each operation's time, where the runner can (see `timings`).
        Returns whether each row of the batch came through with finite numbers.
        """
        ...

    def timings(self) -> list[tuple[str, float]]:
        """Name and seconds of each operation, summed over the timed batches, in order; empty if it cannot time."""
        ...

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carry out block moves in order."""
        ...

    def close(self) -> None:
        """Free weights, KV bytes and threads."""
        ...
