"""Latency targets as times, and who is most urgent under them. Formulas only; orders and policies use them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvist.core.request import LatencyTargets, NewRequest, Request, RequestState
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork

PACE_MEMORY_STEPS = 16.0

Urgency = tuple[int, float]  # smaller is served first


def latency_targets(
    new: NewRequest,
    now: float,
    *,
    num_prompt_tokens: int,
    default_ttft_ms: float | None,
    default_tpot_ms: float,
    ageing_s: float,
    step_times: StepTimeModel,
) -> LatencyTargets:
    """What `new`, queued at `now`, is to reach: its own targets, else the defaults. TTFT counts from its arrival."""
    ttft_ms = default_ttft_ms if new.ttft_ms is None else new.ttft_ms
    tpot_ms = default_tpot_ms if new.tpot_ms is None else new.tpot_ms
    first_token_by_s = math.inf if ttft_ms is None else min(new.arrival_time_s, now) + ttft_ms / 1000.0
    return LatencyTargets(
        first_token_by_s=first_token_by_s,
        prefill_s=step_times.predict_s(StepWork.of([(num_prompt_tokens, 0)], num_sampled=1)),
        tpot_s=tpot_ms / 1000.0,
        overdue_at_s=now + ageing_s,
    )


class PrefillPace:
    """How much longer prompts take here and now than on an engine with nothing else to do."""

    def __init__(self) -> None:
        self._spent_s = self._done_s = 0.0

    @property
    def slowdown(self) -> float:
        return max(self._spent_s / self._done_s, 1.0) if self._done_s > 0.0 else 1.0

    def note_step(self, chunks: Sequence[tuple[Request, int]], step_time_s: float) -> None:
        """A step with these chunks of prompts (tokens) has been computed."""
        done_s = sum(
            request.targets.prefill_s * num_tokens / request.num_prompt_tokens for request, num_tokens in chunks
        )
        self._spent_s += (step_time_s - self._spent_s) / PACE_MEMORY_STEPS
        self._done_s += (done_s - self._done_s) / PACE_MEMORY_STEPS


def is_in_time(request: Request, num_left: int, now: float, slowdown: float) -> bool:
    """Whether the first token can still come in time, at the pace at which prompts are computed now.

    num_left: tokens of its prompt that are to be computed.
    """
    targets = request.targets
    left_s = targets.prefill_s * num_left / request.num_prompt_tokens
    return now + slowdown * left_s <= targets.first_token_by_s


def urgency(request: Request, num_left: int, now: float, slowdown: float) -> Urgency:
    """First whoever was preempted; then by TTFT slack; last those whose target is lost.

    A lost target is not worth making others miss theirs: those who lost it come in order of arrival. One that was begun
    and has waited too long comes first again.
    """
    targets = request.targets
    is_overdue = request.state is RequestState.RUNNING and now >= targets.overdue_at_s
    if request.num_preemptions > 0 or is_overdue:
        return (0, targets.overdue_at_s)
    return (1, targets.start_by_s) if is_in_time(request, num_left, now, slowdown) else (2, targets.overdue_at_s)


def lead_s(request: Request, now: float, *, pace: float = 1.0) -> float:
    """How far a decoding request is ahead of its pace: its last token was due `tpot` after the one before, and so on.

    Its mean time between tokens is on target as long as its lead is not negative at its last token.
    """
    if request.first_token_s is None:
        return 0.0
    num_gaps = request.num_output_tokens + request.num_in_flight_samples - 1
    return request.first_token_s + num_gaps * pace * request.targets.tpot_s - now
