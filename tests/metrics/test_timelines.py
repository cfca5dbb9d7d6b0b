"""A request's story, kept for a while."""

from __future__ import annotations

from kvist.core.request import FinishReason
from kvist.core.request_events import EventBatch, Finished, Preempted, Queued, Scheduled, TokensSampled
from kvist.metrics.timelines import MAX_MOMENTS, Timelines


def test_a_timeline_tells_what_happened_when() -> None:
    timelines = Timelines()
    events = [
        Queued("a", 10.0, 100),
        Scheduled("a", 11.0, 64),
        TokensSampled("a", 12.0, [1]),
        Preempted("a", 13.0, 101),
        Scheduled("a", 14.0, 96),
        TokensSampled("a", 15.0, [1, 2]),
        Finished("a", 16.0, FinishReason.LENGTH, 100, 3, 64, 1),
    ]
    timelines.record(EventBatch(16.0, events))
    (timeline,) = timelines.all()
    assert [(moment.at_s, moment.what, moment.num_tokens) for moment in timeline.moments] == [
        (0.0, "queued", 100),
        (1.0, "scheduled", 64),
        (2.0, "first token", None),
        (3.0, "preempted", 101),
        (4.0, "scheduled", 96),
        (6.0, "finished", 3),
    ]
    assert (timeline.first_scheduled_at_s, timeline.first_token_at_s, timeline.last_token_at_s) == (1.0, 2.0, 5.0)
    assert (timeline.num_cached_tokens, timeline.num_output_tokens, timeline.num_preemptions) == (64, 3, 1)


def test_memory_is_bounded_by_requests_and_by_moments() -> None:
    timelines = Timelines(max_timelines=3)
    for number in range(10):
        timelines.record(EventBatch(0.0, [Queued(str(number), 0.0, 1)]))
    timelines.record(EventBatch(1.0, [Preempted("9", 1.0, 1)] * 1000 + [Preempted("0", 1.0, 1)]))
    assert [timeline.request_id for timeline in timelines.all()] == ["7", "8", "9"]
    assert len(list(timelines.all())[-1].moments) == MAX_MOMENTS
