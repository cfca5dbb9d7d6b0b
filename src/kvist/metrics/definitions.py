"""What each latency means, as formulas over one request's times. docs/metrics.md states the same.

Times are seconds of one clock, taken from the request events, so the engine and the simulator agree.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RequestTimes:
    """The moments of one request that its latencies are made of; None until they happen."""

    queued_s: float
    num_prompt_tokens: int
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_output_tokens: int = 0
    ttft_target_s: float | None = None
    tpot_target_s: float | None = None

    @property
    def has_targets(self) -> bool:
        return self.ttft_target_s is not None or self.tpot_target_s is not None


def time_to_first_token_s(times: RequestTimes) -> float | None:
    """TTFT = first output token - queued."""
    return None if times.first_token_s is None else times.first_token_s - times.queued_s


def queue_time_s(times: RequestTimes) -> float | None:
    """Queue time = first time in the running set - queued."""
    return None if times.first_scheduled_s is None else times.first_scheduled_s - times.queued_s


def prefill_time_s(times: RequestTimes) -> float | None:
    """Prefill time = first output token - first time in the running set."""
    if times.first_token_s is None or times.first_scheduled_s is None:
        return None
    return times.first_token_s - times.first_scheduled_s


def decode_time_s(times: RequestTimes) -> float | None:
    """Decode time = last output token - first output token."""
    if times.first_token_s is None or times.last_token_s is None:
        return None
    return times.last_token_s - times.first_token_s


def inference_time_s(times: RequestTimes) -> float | None:
    """Inference time = prefill time + decode time."""
    if times.last_token_s is None or times.first_scheduled_s is None:
        return None
    return times.last_token_s - times.first_scheduled_s


def time_per_output_token_s(times: RequestTimes) -> float | None:
    """TPOT = decode time / (output tokens - 1): one figure per request, none for a single token."""
    decode_s = decode_time_s(times)
    if decode_s is None or times.num_output_tokens < 2:
        return None
    return decode_s / (times.num_output_tokens - 1)


def end_to_end_latency_s(times: RequestTimes, finished_s: float) -> float:
    """End-to-end latency = finished - queued."""
    return finished_s - times.queued_s


def meets_targets(times: RequestTimes) -> bool:
    """Whether a finished request is good: it meets every target that it brought.

    Goodput is the rate of good requests; SLO attainment is their share of those that brought targets.
    """
    ttft_s, tpot_s = time_to_first_token_s(times), time_per_output_token_s(times)
    if times.ttft_target_s is not None and (ttft_s is None or ttft_s > times.ttft_target_s):
        return False
    return times.tpot_target_s is None or tpot_s is None or tpot_s <= times.tpot_target_s
