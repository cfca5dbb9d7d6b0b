"""Measures the kernels' best rates, for the utilization of a run (metrics.utilization)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvist.bench.load_run import LoadRun, percentile
from kvist.bench.step_timer import Chunks, StepTimer
from kvist.core.request_events import StepSummary
from kvist.costmodel.step_work import StepWork
from kvist.metrics.utilization import BestRates, utilization

__all__ = [
    "BestRates",
    "StepTimes",
    "StepUtilization",
    "best_rates",
    "shortest",
    "step_utilization",
    "steps_while_prompts_wait",
    "time_steps",
    "utilization_of",
]

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
    if not while_prompts_wait:
        steps = zip(run.works, run.steps, strict=True)
        return utilization(rates, ((work, step.num_padding_tokens) for work, step in steps), run.elapsed_s)
    kept, elapsed_s = steps_while_prompts_wait(run)
    return utilization(rates, ((work, step.num_padding_tokens) for work, step in kept), elapsed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUtilization:
    """While prompts wait. between_steps: share of the time in which no step ran. median, best_tenth: needed work of
    a step at best rates over its time, of the median step and of that which a tenth of them exceed: what lies between
    the two is the machine's own doing, as steps of one kind take turns being fast and slow.
    """

    between_steps: float
    median: float
    best_tenth: float


def step_utilization(rates: BestRates, run: LoadRun) -> StepUtilization:
    kept, elapsed_s = steps_while_prompts_wait(run)
    shares = [rates.needed_s(work, step.num_padding_tokens) / step.step_time_s for work, step in kept]
    in_steps_s = sum(step.step_time_s for _, step in kept)
    return StepUtilization(
        between_steps=max(1.0 - in_steps_s / elapsed_s, 0.0),
        median=percentile(shares, 50),
        best_tenth=percentile(shares, 90),
    )


def steps_while_prompts_wait(run: LoadRun) -> tuple[list[tuple[StepWork, StepSummary]], float]:
    """Steps up to the last that computes a prompt, and the seconds that they and what lies between them took."""
    steps = list(zip(run.works, run.steps, strict=True))
    last = max(place for place, (_, step) in enumerate(steps) if step.num_prefill_tokens)
    begun_s = run.steps[0].time_s - run.steps[0].step_time_s
    return steps[: last + 1], run.steps[last].time_s - begun_s
