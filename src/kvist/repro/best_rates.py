"""Measures the kernels' best rates, for the utilization of a run (metrics.utilization)."""

from __future__ import annotations

from kvist.bench.load_run import LoadRun
from kvist.bench.step_timer import StepTimer
from kvist.metrics.utilization import BestRates, utilization

__all__ = ["BestRates", "measure_best_rates", "utilization_of"]

LARGE_STEPS = (256, 512, 1024)  # where a token is cheapest
LONG_CONTEXT = 2048
NUM_DECODES = 32


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


def utilization_of(rates: BestRates, run: LoadRun) -> float:
    paddings = (step.num_padding_tokens for step in run.steps)
    return utilization(rates, zip(run.works, paddings, strict=True), run.elapsed_s)
