"""Latency targets as multiples of what the same request has on the same machine with nobody else."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.bench.load_run import TargetsOf
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork
from kvist.metrics.served_request import Targets
from kvist.workload.load_file import ServiceLevel
from kvist.workload.trace_record import TraceRecord

SIZE_STEP = 8  # from one measured length to the next

Curve = Sequence[tuple[float, float]]  # points (tokens, seconds), rising in tokens


@dataclass(frozen=True, slots=True)
class UnloadedLatency:
    """ttft: by prompt tokens. tpot: by tokens of context. Straight between the points, and on beyond the last two."""

    ttft: Curve
    tpot: Curve

    def ttft_s(self, num_prompt_tokens: float) -> float:
        return _on_curve(self.ttft, num_prompt_tokens)

    def tpot_s(self, num_context_tokens: float) -> float:
        return _on_curve(self.tpot, num_context_tokens)

    def targets_of(
        self, level: ServiceLevel, *, ttft_ms: float | None = None, tpot_ms: float | None = None
    ) -> TargetsOf:
        """The targets of a request: its TTFT with an empty cache, its TPOT half-way through its answer.

        ttft_ms, tpot_ms: a target of all requests in the place of its multiple.
        """

        def targets(record: TraceRecord, num_prompt_tokens: int) -> Targets:
            ttft_s = level.ttft_multiple * self.ttft_s(num_prompt_tokens)
            tpot_s = level.tpot_multiple * self.tpot_s(num_prompt_tokens + record.num_output_tokens / 2)
            return Targets(
                ttft_s=ttft_s if ttft_ms is None else ttft_ms / 1000.0,
                tpot_s=tpot_s if tpot_ms is None else tpot_ms / 1000.0,
            )

        return targets


def predicted_latency(step_times: StepTimeModel, *, max_tokens: int, token_budget: int) -> UnloadedLatency:
    """From a model of step times; prompts in chunks of `token_budget`."""
    sizes = _sizes(max_tokens)
    return UnloadedLatency(
        ttft=[(size, _prefill_s(step_times, size, token_budget)) for size in sizes],
        tpot=[(size, step_times.predict_s(StepWork.of([(1, size)], num_sampled=1))) for size in sizes],
    )


def measured_latency(
    measure: Callable[[int], tuple[float, float]], *, max_tokens: int, num_repeats: int
) -> UnloadedLatency:
    """measure: prompt tokens -> TTFT and TPOT of one request alone, in seconds. The shortest of the repeats counts.

    What else a machine does only ever adds time. Longer prompts that were faster than shorter ones make those faster.
    """
    sizes = _sizes(max_tokens)
    best = {size: (float("inf"), float("inf")) for size in sizes}
    for _ in range(num_repeats):
        for size in sizes:
            ttft_s, tpot_s = measure(size)
            best[size] = (min(best[size][0], ttft_s), min(best[size][1], tpot_s))
    return UnloadedLatency(
        ttft=_without_noise([(size, best[size][0]) for size in sizes]),
        tpot=_without_noise([(size, best[size][1]) for size in sizes]),
    )


def _sizes(max_tokens: int) -> list[int]:
    sizes = [16]
    while sizes[-1] * SIZE_STEP < max_tokens:
        sizes.append(sizes[-1] * SIZE_STEP)
    return [*sizes, max(max_tokens, 32)]


def _prefill_s(step_times: StepTimeModel, num_tokens: int, token_budget: int) -> float:
    starts = range(0, num_tokens, token_budget)
    return sum(
        step_times.predict_s(StepWork.of([(min(token_budget, num_tokens - start), start)], num_sampled=1))
        for start in starts
    )


def _without_noise(points: Sequence[tuple[float, float]]) -> Curve:
    fastest = float("inf")
    cleaned = []
    for tokens, seconds in reversed(points):
        fastest = min(fastest, seconds)
        cleaned.append((tokens, fastest))
    return cleaned[::-1]


def _on_curve(curve: Curve, tokens: float) -> float:
    index = min(max(bisect_left(curve, (tokens,)), 1), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[index - 1], curve[index]
    return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)
