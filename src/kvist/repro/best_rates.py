"""Utilization: what a run's work would take if every kernel always ran at its own best measured rate, over its time.

A GPU's utilization counts busy cycles, also those that do nothing useful; here only needed work counts, so padding and
small steps show as what they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.bench.load_run import LoadRun
from kvist.bench.step_timer import StepTimer
from kvist.core.request_events import StepSummary
from kvist.costmodel.step_work import StepWork

LARGE_STEPS = (256, 512, 1024)  # where a token is cheapest
LONG_CONTEXT = 2048
NUM_DECODES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRates:
    """Seconds, each at the kernels' best: products and all else per token, attention per query-key pair of a prompt,
    attention per key of a decode, and the head per sampled row.
    """

    token_s: float
    pair_s: float
    decode_key_s: float
    sampled_row_s: float

    def needed_s(self, work: StepWork, num_padding_tokens: int) -> float:
        """What the step's needed work takes at these rates."""
        return (
            self.token_s * (work.num_tokens - num_padding_tokens)
            + self.pair_s * work.prefill_pairs
            + self.decode_key_s * work.decode_context_tokens
            + self.sampled_row_s * work.num_sampled
        )


def measure_best_rates(timer: StepTimer, *, max_num_tokens: int) -> BestRates:
    """Time steps in which one kind of work dominates; the shortest of several tries each.

    Differences of two times give a kind's own: pairs from the same chunk with and without a long context, rows of the
    head from the same chunks with and without samples, keys of decodes from short and long contexts.
    """
    sizes = [size for size in LARGE_STEPS if size <= max_num_tokens] or [max_num_tokens]
    chunk = sizes[min(1, len(sizes) - 1)]
    near_s = timer.best_s([(chunk, 0)], samples=False)
    far_s = timer.best_s([(chunk, LONG_CONTEXT)], samples=False)
    pair_s = max(far_s - near_s, 0.0) / (chunk * LONG_CONTEXT)
    token_s = min(
        max(timer.best_s([(size, 0)], samples=False) - pair_s * size * (size + 1) / 2, 0.0) / size for size in sizes
    )
    rows = [(max(chunk // NUM_DECODES, 1), 0)] * NUM_DECODES
    head_s = timer.best_s(rows) - timer.best_s(rows, samples=False)
    short_s = timer.best_s([(1, 15)] * NUM_DECODES, samples=False, repeats=5)
    long_s = timer.best_s([(1, 1023)] * NUM_DECODES, samples=False, repeats=5)
    return BestRates(
        token_s=token_s,
        pair_s=pair_s,
        decode_key_s=max(long_s - short_s, 0.0) / (NUM_DECODES * 1008),
        sampled_row_s=max(head_s, 0.0) / NUM_DECODES,
    )


def utilization(rates: BestRates, steps: Sequence[StepSummary], works: Sequence[StepWork], elapsed_s: float) -> float:
    """Sum of the needed work at best rates, divided by the time of the run."""
    needed_s = sum(rates.needed_s(work, step.num_padding_tokens) for work, step in zip(works, steps, strict=True))
    return needed_s / elapsed_s


def utilization_of(rates: BestRates, run: LoadRun) -> float:
    return utilization(rates, run.steps, run.works, run.elapsed_s)
