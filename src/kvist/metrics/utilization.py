"""Utilization: what a run's work would take if every kernel always ran at its own best measured rate, over its time.

A GPU's utilization counts busy cycles, also those that do nothing useful; here only needed work counts, so padding,
small steps and idling show as what they cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class StepCounts(Protocol):
    """What a step does, in counts: costmodel's StepWork and this package's StepRecord are such."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_sampled(self) -> int: ...

    @property
    def decode_context_tokens(self) -> int: ...

    @property
    def prefill_pairs(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRates:
    """Seconds, each at the kernels' best: products and all else per token, attention per query-key pair of a prompt,
    attention per key of a decode, and the head per sampled row.
    """

    token_s: float
    pair_s: float
    decode_key_s: float
    sampled_row_s: float

    def needed_s(self, counts: StepCounts, num_padding_tokens: int) -> float:
        """What the step's needed work takes at these rates."""
        return (
            self.token_s * (counts.num_tokens - num_padding_tokens)
            + self.pair_s * counts.prefill_pairs
            + self.decode_key_s * counts.decode_context_tokens
            + self.sampled_row_s * counts.num_sampled
        )


def utilization(rates: BestRates, steps: Iterable[tuple[StepCounts, int]], elapsed_s: float) -> float:
    """Sum of the needed work at best rates, divided by the time of the run.

    steps: each with the number of its tokens that are padding. elapsed_s: idle time included.
    """
    return sum(rates.needed_s(counts, num_padding_tokens) for counts, num_padding_tokens in steps) / elapsed_s
