"""What a scrape shows of the recorder: under kvist's own names and, unless switched off, under vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvist.core.request import FinishReason
from kvist.metrics.histogram import Histogram
from kvist.metrics.prometheus_text import Labels, PrometheusText
from kvist.metrics.recorder import MetricsRecorder

REJECTION_REASONS = ("queue_full", "unavailable", "too_long")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the recorder does not learn from events: the engine's present state and how it started."""

    model_name: str
    num_waiting: int = 0
    num_running: int = 0
    num_total_blocks: int = 0
    num_free_blocks: int = 0
    num_evictable_blocks: int = 0
    num_restarts: int = 0
    heartbeat_age_s: float = 0.0
    startup_phases_s: Mapping[str, float] = field(default_factory=dict)
    cache_config: Mapping[str, str] = field(default_factory=dict)

    @property
    def kv_usage_fraction(self) -> float:
        """Share of the pool that running requests hold; cached but unreferenced blocks count as free."""
        if not self.num_total_blocks:
            return 0.0
        return 1.0 - (self.num_free_blocks + self.num_evictable_blocks) / self.num_total_blocks


def render(recorder: MetricsRecorder, facts: EngineFacts, *, vllm_names: bool) -> bytes:
    """One scrape."""
    text = PrometheusText({"model_name": facts.model_name, "engine": "0"})
    _write_kvist_counters(text, recorder, facts)
    _write_kvist_gauges(text, facts)
    _write_histograms(text, recorder, "kvist:")
    text.histogram("kvist:step_time_seconds", "Duration of a forward pass", recorder.step_time_s)
    text.histogram("kvist:tokens_per_step", "Tokens computed in a forward pass", recorder.tokens_per_step)
    for name, kind, histogram in (
        ("kvist:prefill_tokens_per_step", "Prefill", recorder.prefill_tokens_per_step),
        ("kvist:decode_tokens_per_step", "Decode", recorder.decode_tokens_per_step),
    ):
        text.histogram(name, f"{kind} tokens computed in a forward pass", histogram)
    if vllm_names:
        _write_histograms(text, recorder, "vllm:")
        _write_vllm(text, recorder, facts)
    return text.encode()


def _write_kvist_counters(text: PrometheusText, recorder: MetricsRecorder, facts: EngineFacts) -> None:
    r = recorder
    text.counter("kvist:requests_started", "Requests received", r.num_started)
    text.counter_by("kvist:requests_finished", "Requests that ended, by why", _finished(r))
    text.counter_by("kvist:requests_rejected", "Requests refused before the engine took them", _rejected(r))
    text.counter("kvist:prompt_tokens", "Prompt tokens of admitted requests", r.num_prompt_tokens)
    text.counter_by(
        "kvist:prompt_tokens_by_source",
        "Where the KV of prompt tokens came from",
        _by("source", {"computed": r.num_computed_prompt_tokens, "cached": r.num_cached_prompt_tokens}),
    )
    text.counter("kvist:generation_tokens", "Output tokens", r.num_generation_tokens)
    text.counter("kvist:preemptions", "Times a running request lost its blocks", r.num_preemptions)
    text.counter("kvist:preempted_tokens", "Tokens that preemption threw away", r.num_tokens_lost)
    text.counter("kvist:steps", "Forward passes", r.num_steps)
    kinds = {kind: r.step_tokens[kind] for kind in ("prefill", "decode", "draft", "padding")}
    text.counter_by("kvist:step_tokens", "Tokens computed", _by("kind", kinds))
    _write_speculation(text, r, "kvist:")
    text.counter("kvist:requests_with_targets", "Finished requests that brought latency targets", r.num_with_targets)
    text.counter("kvist:requests_targets_met", "Finished requests that met all their targets", r.num_targets_met)
    text.counter("kvist:engine_restarts", "Times the engine died and came back", facts.num_restarts)
    text.counter("kvist:recorder_errors", "Event batches that could not be counted", r.num_recorder_errors)
    responses = sorted(r.http_responses.items())
    text.counter_by(
        "kvist:http_responses",
        "Responses by route and code",
        [({"route": route, "code": str(status)}, count) for (route, status), count in responses],
    )


def _write_kvist_gauges(text: PrometheusText, facts: EngineFacts) -> None:
    text.gauge("kvist:requests_running", "Requests in the running set", facts.num_running)
    text.gauge("kvist:requests_waiting", "Requests in the queue", facts.num_waiting)
    text.gauge("kvist:kv_blocks_total", "KV blocks in the pool", facts.num_total_blocks)
    text.gauge("kvist:kv_blocks_free", "KV blocks that hold nothing", facts.num_free_blocks)
    text.gauge("kvist:kv_blocks_evictable", "KV blocks that only the cache holds", facts.num_evictable_blocks)
    text.gauge("kvist:kv_usage_fraction", "Share of the blocks that requests hold", facts.kv_usage_fraction)
    text.gauge("kvist:heartbeat_age_seconds", "Since the step loop last turned", facts.heartbeat_age_s)
    text.gauge_by(
        "kvist:startup_phase_seconds", "Duration of each phase of the start", _by("phase", facts.startup_phases_s)
    )


def _write_histograms(text: PrometheusText, recorder: MetricsRecorder, prefix: str) -> None:
    for name, meaning, histogram in _request_histograms(recorder):
        text.histogram(prefix + name, meaning, histogram)


def _request_histograms(r: MetricsRecorder) -> Iterator[tuple[str, str, Histogram]]:
    """Those that bear the same name in both sets."""
    yield "time_to_first_token_seconds", "First output token - queued", r.ttft_s
    yield "inter_token_latency_seconds", "Between output tokens of a request", r.inter_token_latency_s
    yield "request_time_per_output_token_seconds", "Decode time / (output tokens - 1)", r.tpot_s
    yield "e2e_request_latency_seconds", "Finished - queued", r.e2e_latency_s
    yield "request_queue_time_seconds", "First scheduled - queued", r.queue_time_s
    yield "request_prefill_time_seconds", "First output token - first scheduled", r.prefill_time_s
    yield "request_decode_time_seconds", "Last output token - first output token", r.decode_time_s
    yield "request_inference_time_seconds", "Last output token - first scheduled", r.inference_time_s
    yield "request_prompt_tokens", "Prompt tokens of a request", r.request_prompt_tokens
    yield "request_generation_tokens", "Output tokens of a request", r.request_generation_tokens
    yield "request_num_preemptions", "Preemptions of a request", r.request_preemptions


def _write_vllm(text: PrometheusText, recorder: MetricsRecorder, facts: EngineFacts) -> None:
    r = recorder
    text.histogram("vllm:time_per_output_token_seconds", "Older name of TPOT", r.tpot_s)
    text.histogram("vllm:iteration_tokens_total", "Tokens per step", r.tokens_per_step)
    text.gauge("vllm:num_requests_running", "Requests in the running set", facts.num_running)
    text.gauge("vllm:num_requests_waiting", "Requests in the queue", facts.num_waiting)
    waiting = {"capacity": facts.num_waiting, "deferred": 0}
    text.gauge_by("vllm:num_requests_waiting_by_reason", "Why requests wait", _by("reason", waiting))
    text.gauge("vllm:kv_cache_usage_perc", "KV usage, 0 to 1", facts.kv_usage_fraction)
    text.gauge("vllm:gpu_cache_usage_perc", "Older name of KV usage", facts.kv_usage_fraction)
    text.counter("vllm:prefix_cache_queries", "Prompt tokens looked up", r.num_prompt_tokens)
    text.counter("vllm:prefix_cache_hits", "Prompt tokens read from the cache", r.num_cached_prompt_tokens)
    text.counter("vllm:num_preemptions", "Preemptions", r.num_preemptions)
    text.counter("vllm:prompt_tokens", "Prompt tokens", r.num_prompt_tokens)
    text.counter("vllm:prompt_tokens_cached", "Prompt tokens from the cache", r.num_cached_prompt_tokens)
    sources = {
        "local_compute": r.num_computed_prompt_tokens,
        "local_cache_hit": r.num_cached_prompt_tokens,
        "external_kv_transfer": 0,
    }
    text.counter_by("vllm:prompt_tokens_by_source", "Prompt tokens by source", _by("source", sources))
    text.counter("vllm:generation_tokens", "Output tokens", r.num_generation_tokens)
    _write_speculation(text, r, "vllm:")
    text.counter_by("vllm:request_success", "Requests that ended, by why", _finished(r))
    text.counter_by("vllm:admission_rejections", "Requests refused", _rejected(r))
    text.counter("vllm:corrupted_requests", "Requests that failed", r.num_finished[FinishReason.ERROR])
    text.info("vllm:cache_config_info", "Cache configuration", {"engine": "0", **facts.cache_config})


def _write_speculation(text: PrometheusText, r: MetricsRecorder, prefix: str) -> None:
    prefix += "spec_decode_num_"
    text.counter(prefix + "drafts", "Times that tokens were drafted for a request", r.num_drafts)
    text.counter(prefix + "draft_tokens", "Tokens drafted", r.num_draft_tokens)
    text.counter(prefix + "accepted_tokens", "Drafted tokens that became output", r.num_accepted_tokens)
    positions = range(max(r.accepted_by_position, default=0) + 1)  # position 0 is there even before the first draft
    by_position = {str(position): r.accepted_by_position[position] for position in positions}
    text.counter_by(prefix + "accepted_tokens_per_pos", "Accepted by place in the draft", _by("position", by_position))


def _by(label: str, values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    return [({label: name}, value) for name, value in values.items()]


def _finished(recorder: MetricsRecorder) -> list[tuple[Labels, float]]:
    return _by("finished_reason", {reason.value: recorder.num_finished[reason] for reason in FinishReason})


def _rejected(recorder: MetricsRecorder) -> list[tuple[Labels, float]]:
    """The known reasons are there even at 0, so that panels are not blank."""
    reasons = dict.fromkeys((*REJECTION_REASONS, *recorder.num_rejected))
    return _by("reason", {reason: recorder.num_rejected[reason] for reason in reasons})
