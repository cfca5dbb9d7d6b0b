"""Writes the recorder's state in Prometheus' text format: kvist's own names and, unless switched off, vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kvist.core.request import FinishReason
from kvist.metrics.histogram import Histogram
from kvist.metrics.recorder import MetricsRecorder

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(recorder, facts, vllm_names=vllm_names))
    return generate_latest(registry)


class _Collector(Collector):
    """Turns one recorder into metric families. Both name sets read the same numbers."""

    def __init__(self, recorder: MetricsRecorder, facts: EngineFacts, *, vllm_names: bool) -> None:
        self._recorder = recorder
        self._facts = facts
        self._vllm_names = vllm_names
        self._labels = {"model_name": facts.model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        yield from self._kvist_counters()
        yield from self._kvist_gauges()
        yield from self._histograms("kvist:")
        if self._vllm_names:
            yield from self._vllm_metrics()

    def _kvist_counters(self) -> Iterator[Metric]:
        r = self._recorder
        yield self._counter("kvist:requests_started", "Requests received", r.num_started)
        yield self._finished("kvist:requests_finished")
        yield self._by("kvist:requests_rejected", "Requests refused before the engine took them", "reason", r.num_rejected, REJECTION_REASONS)  # fmt: skip  # noqa: E501
        yield self._counter("kvist:prompt_tokens", "Prompt tokens of admitted requests", r.num_prompt_tokens)
        prompt_sources = {"computed": r.num_computed_prompt_tokens, "cached": r.num_cached_prompt_tokens}
        yield self._by("kvist:prompt_tokens_by_source", "Where the KV of prompt tokens came from", "source", prompt_sources)  # fmt: skip  # noqa: E501
        yield self._counter("kvist:generation_tokens", "Output tokens", r.num_generation_tokens)
        yield self._counter("kvist:preemptions", "Times a running request lost its blocks", r.num_preemptions)
        yield self._counter("kvist:preempted_tokens", "Tokens that preemption threw away", r.num_tokens_lost)
        yield self._counter("kvist:steps", "Forward passes", r.num_steps)
        yield self._by("kvist:step_tokens", "Tokens computed", "kind", r.step_tokens, ("prefill", "decode", "padding"))
        yield self._counter("kvist:requests_with_targets", "Finished requests that brought targets", r.num_with_targets)
        yield self._counter("kvist:requests_targets_met", "Finished requests that met them", r.num_targets_met)
        yield self._counter("kvist:engine_restarts", "Times the engine died and came back", self._facts.num_restarts)
        yield self._counter("kvist:recorder_errors", "Event batches that could not be counted", r.num_recorder_errors)
        responses = CounterMetricFamily("kvist:http_responses", "Responses by route and code", labels=["route", "code"])
        for (route, status), count in sorted(r.http_responses.items()):
            responses.add_metric([route, str(status)], count)
        yield responses

    def _kvist_gauges(self) -> Iterator[Metric]:
        facts = self._facts
        yield self._gauge("kvist:requests_running", "Requests in the running set", facts.num_running)
        yield self._gauge("kvist:requests_waiting", "Requests in the queue", facts.num_waiting)
        yield self._gauge("kvist:kv_blocks_total", "KV blocks in the pool", facts.num_total_blocks)
        yield self._gauge("kvist:kv_blocks_free", "KV blocks that hold nothing", facts.num_free_blocks)
        yield self._gauge(
            "kvist:kv_blocks_evictable", "KV blocks that only the cache holds", facts.num_evictable_blocks
        )
        yield self._gauge("kvist:kv_usage_fraction", "Share of blocks that requests hold", facts.kv_usage_fraction)
        yield self._gauge("kvist:heartbeat_age_seconds", "Since the step loop last turned", facts.heartbeat_age_s)
        phases = GaugeMetricFamily(
            "kvist:startup_phase_seconds", "Duration of each phase of the start", labels=["phase"]
        )
        for phase, seconds in facts.startup_phases_s.items():
            phases.add_metric([phase], seconds)
        yield phases

    def _histograms(self, prefix: str) -> Iterator[Metric]:
        r = self._recorder
        for name, text, histogram in (
            ("time_to_first_token_seconds", "First output token - queued", r.ttft_s),
            ("inter_token_latency_seconds", "Between output tokens of a request", r.inter_token_latency_s),
            ("request_time_per_output_token_seconds", "Decode time / (output tokens - 1)", r.tpot_s),
            ("e2e_request_latency_seconds", "Finished - queued", r.e2e_latency_s),
            ("request_queue_time_seconds", "First scheduled - queued", r.queue_time_s),
            ("request_prefill_time_seconds", "First output token - first scheduled", r.prefill_time_s),
            ("request_decode_time_seconds", "Last output token - first output token", r.decode_time_s),
            ("request_inference_time_seconds", "Last output token - first scheduled", r.inference_time_s),
            ("request_prompt_tokens", "Prompt tokens of a request", r.request_prompt_tokens),
            ("request_generation_tokens", "Output tokens of a request", r.request_generation_tokens),
            ("request_num_preemptions", "Preemptions of a request", r.request_preemptions),
        ):
            yield self._histogram(prefix + name, text, histogram)
        if prefix == "kvist:":
            yield self._histogram("kvist:step_time_seconds", "Duration of a forward pass", r.step_time_s)
            yield self._histogram("kvist:tokens_per_step", "Tokens computed in a forward pass", r.tokens_per_step)

    def _vllm_metrics(self) -> Iterator[Metric]:
        r, facts = self._recorder, self._facts
        yield from self._histograms("vllm:")
        yield self._histogram("vllm:time_per_output_token_seconds", "Older name of TPOT", r.tpot_s)
        yield self._histogram("vllm:iteration_tokens_total", "Tokens per step", r.tokens_per_step)
        yield self._gauge("vllm:num_requests_running", "Requests in the running set", facts.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the queue", facts.num_waiting)
        waiting = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Why requests wait", labels=[*self._labels, "reason"]
        )
        waiting.add_metric([*self._labels.values(), "capacity"], facts.num_waiting)
        waiting.add_metric([*self._labels.values(), "deferred"], 0)
        yield waiting
        yield self._gauge("vllm:kv_cache_usage_perc", "KV usage, 0 to 1", facts.kv_usage_fraction)
        yield self._gauge("vllm:gpu_cache_usage_perc", "Older name of KV usage", facts.kv_usage_fraction)
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up", r.num_prompt_tokens)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens read from the cache", r.num_cached_prompt_tokens)
        yield self._counter("vllm:num_preemptions", "Preemptions", r.num_preemptions)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens", r.num_prompt_tokens)
        yield self._counter("vllm:prompt_tokens_cached", "Prompt tokens from the cache", r.num_cached_prompt_tokens)
        by_source = {
            "local_compute": r.num_computed_prompt_tokens,
            "local_cache_hit": r.num_cached_prompt_tokens,
            "external_kv_transfer": 0,
        }
        yield self._by("vllm:prompt_tokens_by_source", "Prompt tokens by source", "source", by_source)
        yield self._counter("vllm:generation_tokens", "Output tokens", r.num_generation_tokens)
        yield self._finished("vllm:request_success")
        yield self._by("vllm:admission_rejections", "Requests refused", "reason", r.num_rejected, REJECTION_REASONS)
        yield self._counter("vllm:corrupted_requests", "Requests that failed", r.num_finished[FinishReason.ERROR])
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Cache configuration", labels=["engine", *facts.cache_config]
        )
        info.add_metric(["0", *facts.cache_config.values()], 1)
        yield info

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), buckets=histogram.cumulative(), sum_value=histogram.total)
        return family

    def _by(self, name: str, text: str, label: str, counts: Mapping[str, int], always: tuple[str, ...] = ()) -> Metric:
        """A counter split by one label; the values in `always` are there even at 0, so that panels are not blank."""
        family = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for value in dict.fromkeys((*always, *counts)):
            family.add_metric([*self._labels.values(), value], counts.get(value, 0))
        return family

    def _finished(self, name: str) -> Metric:
        counts = {reason.value: self._recorder.num_finished[reason] for reason in FinishReason}
        return self._by(name, "Requests that ended, by why", "finished_reason", counts)
