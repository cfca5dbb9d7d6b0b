"""Measures or predicts the unloaded latency of an engine in this process, and makes targets of it."""

from __future__ import annotations

from collections.abc import Callable

from kvist.bench.load_run import TargetsOf
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork
from kvist.metrics.served_request import Targets
from kvist.metrics.service_level import ServiceLevels, Target, targets_for
from kvist.metrics.unloaded_latency import UnloadedLatency, UnloadedPoint
from kvist.workload.load_file import ServiceLevel
from kvist.workload.trace_record import TraceRecord

SIZE_STEP = 8  # from one measured length to the next


def levels_of(level: ServiceLevel, *, ttft_ms: float | None = None, tpot_ms: float | None = None) -> ServiceLevels:
    """A load's targets. ttft_ms, tpot_ms: a target of all requests in the place of its multiple."""

    def target(multiple: float, given_ms: float | None) -> Target:
        return Target(multiple, is_multiple=True) if given_ms is None else Target(given_ms, is_multiple=False)

    return {"ttft": target(level.ttft_multiple, ttft_ms), "tpot": target(level.tpot_multiple, tpot_ms)}


def targets_of(levels: ServiceLevels, unloaded: UnloadedLatency | None) -> TargetsOf:
    """The targets of a request, by its record and the number of its prompt's tokens."""

    def targets(record: TraceRecord, num_prompt_tokens: int) -> Targets:
        return targets_for(
            levels, unloaded, num_prompt_tokens=num_prompt_tokens, num_output_tokens=record.num_output_tokens
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
    measure: Callable[[int], tuple[float, float]], *, max_tokens: int, num_output_tokens: int, num_repeats: int
) -> UnloadedLatency:
    """measure: prompt tokens -> TTFT and TPOT, in seconds, of one request alone with so many output tokens."""
    sizes = _sizes(max_tokens)
    rounds = [(size, measure(size)) for _ in range(num_repeats) for size in sizes]
    return UnloadedLatency.of(
        [UnloadedPoint(size, num_output_tokens, ttft_s, tpot_s) for size, (ttft_s, tpot_s) in rounds]
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
