"""The last seconds of an engine in one line: how busy it was, how fast, and how well its cache did."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.metrics.histogram import Histogram
from kvist.metrics.prometheus import EngineFacts
from kvist.metrics.recorder import MetricsRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSnapshot:
    """The recorder's counters at one moment."""

    num_prompt_tokens: int
    num_cached_prompt_tokens: int
    num_generation_tokens: int
    num_preemptions: int
    num_steps: int
    ttft_s: Histogram
    inter_token_latency_s: Histogram


def take_snapshot(recorder: MetricsRecorder) -> LoadSnapshot:
    return LoadSnapshot(
        num_prompt_tokens=recorder.num_prompt_tokens,
        num_cached_prompt_tokens=recorder.num_cached_prompt_tokens,
        num_generation_tokens=recorder.num_generation_tokens,
        num_preemptions=recorder.num_preemptions,
        num_steps=recorder.num_steps,
        ttft_s=recorder.ttft_s.copy(),
        inter_token_latency_s=recorder.inter_token_latency_s.copy(),
    )


def summarize_load(before: LoadSnapshot, after: LoadSnapshot, facts: EngineFacts, elapsed_s: float) -> str | None:
    """Say what happened between two snapshots, `elapsed_s` apart; None if no step was made."""
    if after.num_steps == before.num_steps:
        return None
    num_prompt_tokens = after.num_prompt_tokens - before.num_prompt_tokens
    num_cached_tokens = after.num_cached_prompt_tokens - before.num_cached_prompt_tokens
    fields = [
        f"running={facts.num_running}",
        f"waiting={facts.num_waiting}",
        f"prompt_tokens_per_s={num_prompt_tokens / elapsed_s:.1f}",
        f"output_tokens_per_s={(after.num_generation_tokens - before.num_generation_tokens) / elapsed_s:.1f}",
        f"kv_usage={facts.kv_usage_fraction:.1%}",
    ]
    if num_prompt_tokens:
        fields.append(f"prefix_hits={num_cached_tokens / num_prompt_tokens:.1%}")
    for name, window in (
        ("ttft", after.ttft_s.since(before.ttft_s)),
        ("itl", after.inter_token_latency_s.since(before.inter_token_latency_s)),
    ):
        median, worst = window.percentile(50), window.percentile(99)
        if median is not None and worst is not None:
            fields += (f"{name}_p50_s={median:.3f}", f"{name}_p99_s={worst:.3f}")
    if after.num_preemptions != before.num_preemptions:
        fields.append(f"preemptions={after.num_preemptions - before.num_preemptions}")
    return " ".join(fields)
