"""The periodic line in the log."""

from __future__ import annotations

from kvist.core.request_events import EventBatch, Preempted, Queued, Scheduled, StepSummary, TokensSampled
from kvist.metrics.load_summary import summarize_load, take_snapshot
from kvist.metrics.prometheus import EngineFacts
from kvist.metrics.recorder import MetricsRecorder

FACTS = EngineFacts(model_name="m", num_running=3, num_waiting=1, num_total_blocks=100, num_free_blocks=80)


def test_a_busy_period_is_one_line_of_rates_and_percentiles() -> None:
    recorder = MetricsRecorder()
    step = StepSummary(1, 2.0, 0.25, 40, 30, 8, 2, 3, 1, 5, 6, 20)
    recorder.record(EventBatch(0.0, [Queued("old", 0.0, 999), Scheduled("old", 0.0, 0)], step))
    before = take_snapshot(recorder)
    events = [
        Queued("a", 1.0, 100),
        Scheduled("a", 1.0, 75),
        TokensSampled("a", 1.1, [1]),
        TokensSampled("a", 1.2, [1]),
        Preempted("a", 1.3, 102),
    ]
    recorder.record(EventBatch(2.0, events, step))
    line = summarize_load(before, take_snapshot(recorder), FACTS, 10.0)
    assert line is not None
    assert line.startswith(
        "running=3 waiting=1 prompt_tokens_per_s=10.0 output_tokens_per_s=0.2 kv_usage=20.0% prefix_hits=75.0% ttft_p50"
    )
    assert line.endswith(" preemptions=1")
    assert "\n" not in line


def test_an_idle_period_is_silent() -> None:
    recorder = MetricsRecorder()
    assert summarize_load(take_snapshot(recorder), take_snapshot(recorder), FACTS, 10.0) is None
