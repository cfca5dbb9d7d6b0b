"""Metrics come from events alone, add up, and cannot hurt who feeds them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.core.request import FinishReason
from kvist.core.request_events import EventBatch, Finished, Preempted, Queued, Scheduled, StepSummary, TokensSampled
from kvist.metrics.recorder import MetricsRecorder


def finished(request_id: str, time_s: float, reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished(request_id, time_s, reason, 10, 3, 4, 1)


def recorded(*events: object) -> MetricsRecorder:
    recorder = MetricsRecorder()
    recorder.record(EventBatch(0.0, list(events)))
    return recorder


def test_latencies_follow_their_formulas() -> None:
    recorder = recorded(
        Queued("a", 1.0, 10),
        Scheduled("a", 1.5, 4),
        TokensSampled("a", 3.0, [7]),
        TokensSampled("a", 4.0, [7]),
        TokensSampled("a", 7.0, [7, 8]),
        finished("a", 8.0),
    )
    assert recorder.ttft_s.total == 2.0
    assert recorder.queue_time_s.total == 0.5
    assert recorder.prefill_time_s.total == 1.5
    assert recorder.decode_time_s.total == 4.0
    assert recorder.inference_time_s.total == 5.5
    assert recorder.e2e_latency_s.total == 7.0
    assert recorder.tpot_s.total == pytest.approx(4.0 / 3)
    assert (recorder.inter_token_latency_s.total, recorder.inter_token_latency_s.num_values) == (4.0, 3)
    assert (recorder.num_prompt_tokens, recorder.num_cached_prompt_tokens) == (10, 4)
    assert recorder.num_generation_tokens == 4


def test_a_preempted_request_counts_its_prompt_once() -> None:
    recorder = recorded(
        Queued("a", 1.0, 10),
        Scheduled("a", 2.0, 0),
        Preempted("a", 3.0, 10),
        Scheduled("a", 4.0, 8),
        TokensSampled("a", 5.0, [7]),
        finished("a", 6.0),
    )
    assert (recorder.num_prompt_tokens, recorder.num_cached_prompt_tokens) == (10, 0)
    assert (recorder.num_preemptions, recorder.num_tokens_lost) == (1, 10)
    assert recorder.queue_time_s.total == 1.0


@pytest.mark.parametrize(("targets", "met"), [((1500, 900), 1), ((1400, None), 0), ((None, 500), 0), ((None, 1100), 1)])
def test_goodput_counts_requests_that_meet_all_targets_they_brought(
    targets: tuple[float | None, float | None], met: int
) -> None:
    recorder = recorded(
        Queued("a", 0.0, 10, *targets),
        Scheduled("a", 1.0, 0),
        TokensSampled("a", 1.5, [7]),
        TokensSampled("a", 2.4, [7]),
        finished("a", 2.5),
        Queued("without", 0.0, 10),
        finished("without", 9.0),
    )
    assert (recorder.num_with_targets, recorder.num_targets_met) == (1, met)


def test_a_step_counts_its_tokens_by_kind() -> None:
    recorder = MetricsRecorder()
    step = StepSummary(1, 2.0, 0.25, 40, 30, 8, 2, 3, 1, 5, 6, 20)
    recorder.record(EventBatch(2.0, [], step))
    assert dict(recorder.step_tokens) == {"prefill": 30, "decode": 8, "draft": 0, "padding": 2}
    assert (recorder.step_time_s.total, recorder.tokens_per_step.total) == (0.25, 40)
    assert recorder.last_step == step


def test_nonsense_is_counted_and_never_raised() -> None:
    recorder = MetricsRecorder()
    recorder.record(EventBatch(0.0, [TokensSampled("a", 0.0, None), Queued("a", None, None)]))
    recorder.record(EventBatch(1.0, [Queued("b", "soon", 1), TokensSampled("b", 1.0, [3])]))
    assert recorder.num_recorder_errors == 2


EVENTS = st.lists(
    st.builds(
        lambda kind, request_id, time_s, count, reason: {
            "queued": Queued(request_id, time_s, count),
            "scheduled": Scheduled(request_id, time_s, min(count, 3)),
            "preempted": Preempted(request_id, time_s, count),
            "tokens": TokensSampled(request_id, time_s, [1] * (count % 4)),
            "finished": Finished(request_id, time_s, reason, count, 1, 0, 0),
        }[kind],
        st.sampled_from(["queued", "scheduled", "preempted", "tokens", "finished"]),
        st.sampled_from("abc"),
        st.floats(-1e6, 1e6),
        st.integers(3, 9),
        st.sampled_from(FinishReason),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, num_rejected=st.integers(0, 3))
def test_started_is_finished_aborted_rejected_and_open(events: list[object], num_rejected: int) -> None:
    known: set[str] = set()
    sensible = []
    for event in events:  # an id is queued once at a time; everything else may come in any order
        if isinstance(event, Queued):
            if event.request_id in known:
                continue
            known.add(event.request_id)
        elif isinstance(event, Finished):
            known.discard(event.request_id)
        sensible.append(event)
    recorder = recorded(*sensible)
    for _ in range(num_rejected):
        recorder.record_rejected("queue_full")
    completed = sum(recorder.num_finished.values()) - recorder.num_aborted
    rejected = sum(recorder.num_rejected.values())
    assert recorder.num_started == completed + recorder.num_aborted + rejected + recorder.num_open
    assert recorder.num_open == len(known)
    assert recorder.num_prompt_tokens == recorder.num_cached_prompt_tokens + recorder.num_computed_prompt_tokens
    assert recorder.num_recorder_errors == 0
    for histogram in (recorder.ttft_s, recorder.e2e_latency_s, recorder.inter_token_latency_s):
        assert histogram.total >= 0


def test_drafts_are_counted_from_the_events() -> None:
    recorder = MetricsRecorder()
    events = [
        Queued("a", 0.0, 4),
        TokensSampled("a", 1.0, [7]),
        TokensSampled("a", 2.0, [7, 8, 9], None, 4),
        TokensSampled("a", 3.0, [7], None, 2),
        TokensSampled("a", 4.0, [7, 8], None, 1),
    ]
    recorder.record(EventBatch(4.0, events))
    assert (recorder.num_drafts, recorder.num_draft_tokens, recorder.num_accepted_tokens) == (3, 7, 3)
    assert dict(recorder.accepted_by_position) == {0: 2, 1: 1}
    assert recorder.num_generation_tokens == 7
