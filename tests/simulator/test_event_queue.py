"""The order of events, also of those at the same instant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvist.simulator.event_queue import EventKind, EventQueue

KINDS = st.sampled_from(list(EventKind))


def test_at_one_instant_steps_end_before_aborts_and_aborts_before_arrivals() -> None:
    queue: EventQueue[str] = EventQueue()
    queue.push(1.0, EventKind.ARRIVAL, "arrival")
    queue.push(1.0, EventKind.STEP_DONE, "step")
    queue.push(0.5, EventKind.ARRIVAL, "earlier")
    queue.push(1.0, EventKind.ABORT, "abort")
    assert [queue.pop()[2] for _ in range(4)] == ["earlier", "step", "abort", "arrival"]
    assert queue.next_time_s() is None


@given(st.lists(st.tuples(st.integers(0, 5), KINDS)))
def test_equal_events_keep_the_order_of_pushing(events: list[tuple[int, EventKind]]) -> None:
    queue: EventQueue[int] = EventQueue()
    for index, (time_s, kind) in enumerate(events):
        queue.push(float(time_s), kind, index)
    popped = [queue.pop() for _ in range(len(queue))]
    expected = sorted((float(time_s), kind, index) for index, (time_s, kind) in enumerate(events))
    assert popped == expected
