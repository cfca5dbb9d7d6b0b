"""Measures the kernels' best rates, for the utilization of a run (metrics.utilization)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvist.bench.load_run import LoadRun
from kvist.bench.step_timer import Chunks, StepTimer
from kvist.metrics.utilization import BestRates, utilization

__all__ = ["BestRates", "StepTimes", "best_rates", "shortest", "time_steps", "utilization_of"]

LARGE_STEPS = (256, 512, 1024)  # where a token is cheapest
LONG_CONTEXT = 2048
NUM_DECODES = 32
SHORT_KEYS, LONG_KEYS = 16, 1024

StepTimes = Mapping[str, float]  # seconds, the shortest of several tries


def time_steps(timer: StepTimer, *, max_num_tokens: int, rounds: int) -> StepTimes:
    """Time steps in which one kind of work dominates. They take turns: what else the machine does hits all of them."""
    sizes = _sizes(max_num_tokens)
    chunk = _chunk(max_num_tokens)
    rows = [(max(chunk // NUM_DECODES, 1), 0)] * NUM_DECODES
    silent: dict[str, Chunks] = {f"chunk {size}": [(size, 0)] for size in sizes}
    silent |= {
        "far": [(chunk, LONG_CONTEXT)],
        "rows": rows,
        "short": [(1, SHORT_KEYS - 1)] * NUM_DECODES,
        "long": [(1, LONG_KEYS - 1)] * NUM_DECODES,
    }
    times = timer.best_times_s(silent, repeats=rounds, samples=False)
    return times | {"sampled rows": timer.best_s(rows, repeats=rounds)}


def shortest(times: Sequence[StepTimes]) -> StepTimes:
    """Of several timings of the same steps. A shared machine has slow minutes: best rates are those of a fast one."""
    return {name: min(each[name] for each in times) for name in times[0]}


def best_rates(times: StepTimes, *, max_num_tokens: int) -> BestRates:
    """Differences of two times give a kind's own: pairs from the same chunk with and without a long context, rows of
    the head from the same chunks with and without samples, keys of decodes from short and long contexts.
    """
    sizes, chunk = _sizes(max_num_tokens), _chunk(max_num_tokens)
    pair_s = max(times["far"] - times[f"chunk {chunk}"], 0.0) / (chunk * LONG_CONTEXT)
    return BestRates(
        token_s=min(max(times[f"chunk {size}"] - pair_s * size * (size + 1) / 2, 0.0) / size for size in sizes),
        pair_s=pair_s,
        decode_key_s=max(times["long"] - times["short"], 0.0) / (NUM_DECODES * (LONG_KEYS - SHORT_KEYS)),
        sampled_row_s=max(times["sampled rows"] - times["rows"], 0.0) / NUM_DECODES,
    )


def _sizes(max_num_tokens: int) -> list[int]:
    return [size for size in LARGE_STEPS if size <= max_num_tokens] or [max_num_tokens]


def _chunk(max_num_tokens: int) -> int:
    sizes = _sizes(max_num_tokens)
    return sizes[min(1, len(sizes) - 1)]


def utilization_of(rates: BestRates, run: LoadRun, *, while_prompts_wait: bool = False) -> float:
    """while_prompts_wait: until the end of the last step that computes a prompt. After it, decodes are all there is,
    fewer and fewer of them: what can then be used says how the load ends, not how steps are filled.
    """
    steps = list(zip(run.works, run.steps, strict=True))
    if not while_prompts_wait:
        return utilization(rates, ((work, step.num_padding_tokens) for work, step in steps), run.elapsed_s)
    last = max(place for place, (_, step) in enumerate(steps) if step.num_prefill_tokens)
    kept = steps[: last + 1]
    begun_s = run.steps[0].time_s - run.steps[0].step_time_s
    elapsed_s = run.steps[last].time_s - begun_s
    return utilization(rates, ((work, step.num_padding_tokens) for work, step in kept), elapsed_s)
