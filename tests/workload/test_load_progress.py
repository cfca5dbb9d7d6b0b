"""Follow-ups come their pause after the answer that they contain."""

from __future__ import annotations

from kvist.workload.load_progress import LoadProgress
from kvist.workload.trace_record import TextPart, TraceRecord


def record(index: int, arrival_s: float, after: int | None = None) -> TraceRecord:
    return TraceRecord(
        index=index, arrival_s=arrival_s, prompt=(TextPart("a", 0, 8),), num_output_tokens=2, after=after
    )


def test_requests_are_taken_once_when_they_are_due_in_order_of_time() -> None:
    progress = LoadProgress([record(0, 3.0), record(1, 1.0), record(2, 2.0)])
    assert progress.next_time_s == 1.0
    assert [(time_s, taken.index) for time_s, taken in progress.take_due(2.5)] == [(1.0, 1), (2.0, 2)]
    assert progress.take_due(2.5) == []
    assert progress.next_time_s == 3.0


def test_a_follow_up_is_due_its_pause_after_the_end_of_the_one_before_it() -> None:
    progress = LoadProgress([record(0, 0.0), record(1, 0.5, after=0), record(2, 0.0, after=0)])
    progress.take_due(0.0)
    assert progress.next_time_s is None
    progress.note_ended(0, 10.0)
    assert [(time_s, taken.index) for time_s, taken in progress.take_due(11.0)] == [(10.0, 2), (10.5, 1)]
    assert progress.num_unfinished == 2
