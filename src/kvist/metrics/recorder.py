"""Counts what happened, from the request events alone. Never reads a clock and never raises into its caller.

A request here is one sequence in the engine: `n` samples of one call are `n` requests.
At any time: started = finished (stop, length, error) + aborted + rejected + open.
"""

from __future__ import annotations

from collections import Counter

from kvist.core.request import FinishReason, RequestId
from kvist.core.request_events import (
    EventBatch,
    Finished,
    Preempted,
    Queued,
    RequestEvent,
    Scheduled,
    StepSummary,
    TokensSampled,
)
from kvist.metrics import definitions
from kvist.metrics.definitions import RequestTimes
from kvist.metrics.histogram import COUNT_BUCKETS, LATENCY_BUCKETS_S, STEP_TOKEN_BUCKETS, TOKEN_BUCKETS, Histogram


class MetricsRecorder:
    """Holds counters, histograms and the last step's state. One writer: the thread that feeds it."""

    def __init__(self) -> None:
        self.num_started = 0
        self.num_finished: Counter[FinishReason] = Counter()
        self.num_rejected: Counter[str] = Counter()
        self.num_prompt_tokens = 0
        self.num_computed_prompt_tokens = 0
        self.num_cached_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.num_preemptions = 0
        self.num_tokens_lost = 0
        self.num_steps = 0
        self.step_tokens: Counter[str] = Counter()
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.accepted_by_position: Counter[int] = Counter()
        self.num_with_targets = 0
        self.num_targets_met = 0
        self.http_responses: Counter[tuple[str, int]] = Counter()
        self.num_recorder_errors = 0
        self.last_step: StepSummary | None = None
        self.ttft_s = Histogram(LATENCY_BUCKETS_S)
        self.inter_token_latency_s = Histogram(LATENCY_BUCKETS_S)
        self.tpot_s = Histogram(LATENCY_BUCKETS_S)
        self.e2e_latency_s = Histogram(LATENCY_BUCKETS_S)
        self.queue_time_s = Histogram(LATENCY_BUCKETS_S)
        self.prefill_time_s = Histogram(LATENCY_BUCKETS_S)
        self.decode_time_s = Histogram(LATENCY_BUCKETS_S)
        self.inference_time_s = Histogram(LATENCY_BUCKETS_S)
        self.step_time_s = Histogram(LATENCY_BUCKETS_S)
        self.tokens_per_step = Histogram(TOKEN_BUCKETS)
        self.prefill_tokens_per_step = Histogram(STEP_TOKEN_BUCKETS)
        self.decode_tokens_per_step = Histogram(STEP_TOKEN_BUCKETS)
        self.request_prompt_tokens = Histogram(TOKEN_BUCKETS)
        self.request_generation_tokens = Histogram(TOKEN_BUCKETS)
        self.request_preemptions = Histogram(COUNT_BUCKETS)
        self._open: dict[RequestId, RequestTimes] = {}

    @property
    def num_open(self) -> int:
        """Requests that started and have not finished: waiting, running or preempted."""
        return len(self._open)

    @property
    def num_aborted(self) -> int:
        return self.num_finished[FinishReason.ABORT]

    def record(self, batch: EventBatch) -> None:
        """Take in one batch. A malformed one is counted in `num_recorder_errors`, never raised."""
        try:
            for event in batch.events:
                self._record_event(event)
            if batch.step is not None:
                self._record_step(batch.step)
        except Exception:  # noqa: BLE001 - a metric must not be able to stop the engine or a stream
            self.num_recorder_errors += 1

    def record_rejected(self, reason: str) -> None:
        """Count a request that was refused before the engine took it: queue_full, unavailable, too_long."""
        self.num_started += 1
        self.num_rejected[reason] += 1

    def record_http_response(self, route: str, status: int) -> None:
        self.http_responses[route, status] += 1

    def _record_event(self, event: RequestEvent) -> None:
        if isinstance(event, TokensSampled):
            self._record_tokens(event)
        elif isinstance(event, Queued):
            self.num_started += 1
            self._open[event.request_id] = RequestTimes(
                event.time_s,
                event.num_prompt_tokens,
                ttft_target_s=_seconds(event.ttft_ms),
                tpot_target_s=_seconds(event.tpot_ms),
            )
        elif isinstance(event, Scheduled):
            self._record_scheduled(event)
        elif isinstance(event, Preempted):
            self.num_preemptions += 1
            self.num_tokens_lost += event.num_tokens_lost
        elif isinstance(event, Finished):
            self._record_finished(event)

    def _record_tokens(self, event: TokensSampled) -> None:
        times = self._open.get(event.request_id)
        num_tokens = len(event.token_ids)
        if times is None or num_tokens == 0:
            return
        if times.last_token_s is None:
            times.first_token_s = event.time_s
            _observe(self.ttft_s, definitions.time_to_first_token_s(times))
        else:
            self.inter_token_latency_s.observe((event.time_s - times.last_token_s) / num_tokens, num_tokens)
        times.last_token_s = event.time_s
        times.num_output_tokens += num_tokens
        self.num_generation_tokens += num_tokens
        if event.num_draft_tokens:
            self.num_drafts += 1
            self.num_draft_tokens += event.num_draft_tokens
            self.num_accepted_tokens += num_tokens - 1
            self.accepted_by_position.update(range(num_tokens - 1))

    def _record_scheduled(self, event: Scheduled) -> None:
        times = self._open.get(event.request_id)
        if times is None or times.first_scheduled_s is not None:
            return  # the prompt is counted once, at the first admission
        times.first_scheduled_s = event.time_s
        _observe(self.queue_time_s, definitions.queue_time_s(times))
        self.num_prompt_tokens += times.num_prompt_tokens
        self.num_cached_prompt_tokens += event.num_cached_tokens
        self.num_computed_prompt_tokens += times.num_prompt_tokens - event.num_cached_tokens
        self.request_prompt_tokens.observe(times.num_prompt_tokens)

    def _record_finished(self, event: Finished) -> None:
        times = self._open.pop(event.request_id, None)
        if times is None:
            return
        self.num_finished[event.reason] += 1
        if event.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        if times.has_targets:
            self.num_with_targets += 1
            self.num_targets_met += definitions.meets_targets(times)
        self.e2e_latency_s.observe(definitions.end_to_end_latency_s(times, event.time_s))
        self.request_generation_tokens.observe(times.num_output_tokens)
        self.request_preemptions.observe(event.num_preemptions)
        for histogram, value in (
            (self.tpot_s, definitions.time_per_output_token_s(times)),
            (self.prefill_time_s, definitions.prefill_time_s(times)),
            (self.decode_time_s, definitions.decode_time_s(times)),
            (self.inference_time_s, definitions.inference_time_s(times)),
        ):
            _observe(histogram, value)

    def _record_step(self, step: StepSummary) -> None:
        self.last_step = step
        self.num_steps += 1
        self.step_time_s.observe(step.step_time_s)
        self.tokens_per_step.observe(step.num_scheduled_tokens)
        self.prefill_tokens_per_step.observe(step.num_prefill_tokens)
        self.decode_tokens_per_step.observe(step.num_decode_tokens)
        self.step_tokens["prefill"] += step.num_prefill_tokens
        self.step_tokens["decode"] += step.num_decode_tokens
        self.step_tokens["draft"] += step.num_draft_tokens
        self.step_tokens["padding"] += step.num_padding_tokens


def _observe(histogram: Histogram, value: float | None) -> None:
    if value is not None:
        histogram.observe(value)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0
