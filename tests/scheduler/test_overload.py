"""Deadlines, full queues, honest answers about when to come back."""

from __future__ import annotations

import pytest
from tests.fakes.engine_world import World, request

from kvist.core.errors import QueueFullError
from kvist.core.request import FinishReason
from kvist.core.request_events import Scheduled
from kvist.scheduler.admission import QueueLoad, StartRate, check_queue


def load(**changes: float | None) -> QueueLoad:
    numbers: dict = {
        "num_waiting": 10,
        "num_waiting_tokens": 1000,
        "num_free_seqs": 0,
        "max_num_queued_reqs": 10,
        "max_num_queued_tokens": None,
        "started_per_s": None,
        "tokens_per_s": None,
    }
    return QueueLoad(**{**numbers, **changes})


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_whose_deadline_passed_is_dropped_before_work_is_spent_on_it(depth: int) -> None:
    world = World(depth=depth, config={"max_num_seqs": 1})
    world.run(request("first", max_tokens=20), request("late", deadline_s=5.0, at=0.5))
    assert world.reasons() == {"first": FinishReason.LENGTH, "late": FinishReason.ERROR}
    assert "deadline" in world.finished()["late"].error
    assert "late" not in {event.request_id for event in world.of_type(Scheduled)}
    world.assert_at_rest()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_running_request_ends_at_its_deadline_and_frees_its_blocks(depth: int) -> None:
    world = World(depth=depth)
    world.run(request("a", max_tokens=50, deadline_s=10.0), request("b", max_tokens=50))
    assert world.reasons() == {"a": FinishReason.ERROR, "b": FinishReason.LENGTH}
    assert 5 < len(world.outputs()["a"]) <= 10
    world.assert_at_rest()


def test_a_deadline_that_passes_while_nothing_runs_is_reported() -> None:
    world = World()
    world.run(request("a", at=3.0, deadline_s=2.0))
    assert world.reasons() == {"a": FinishReason.ERROR}
    world.assert_at_rest()


def test_a_deadline_does_not_hit_a_later_request_with_the_same_id() -> None:
    world = World()
    world.run(request("a", max_tokens=1, deadline_s=10.0))
    world.run(request("a", max_tokens=8, at=5.0))
    assert world.reasons() == {"a": FinishReason.LENGTH}


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    world = World()
    world.run(*(request(f"r{index}", 4, max_tokens=1, at=index * 2.0, deadline_s=1e9) for index in range(300)))
    assert len(world.scheduler._deadlines) < 100


def test_the_queue_is_bounded_and_goodput_does_not_fall_past_saturation() -> None:
    def num_in_time(requests_per_s: float) -> int:
        world = World(config={"max_num_seqs": 4, "max_num_queued_reqs": 8})
        world.run(
            *(
                request(
                    f"r{index}", 16, max_tokens=8, at=index / requests_per_s, deadline_s=index / requests_per_s + 40
                )
                for index in range(int(100 * requests_per_s))
            )
        )
        return sum(event.reason is FinishReason.LENGTH for event in world.finished().values())

    saturated = num_in_time(0.5)
    assert num_in_time(2.0) >= 0.9 * saturated
    assert num_in_time(5.0) >= 0.9 * saturated


def test_queued_tokens_are_bounded_but_a_lone_long_prompt_is_let_in() -> None:
    check_queue(load(num_waiting=0, num_waiting_tokens=0, max_num_queued_tokens=100), 500)
    with pytest.raises(QueueFullError, match="1000 prompt tokens wait"):
        check_queue(load(num_waiting=5, max_num_queued_tokens=1200), 500)


def test_places_that_are_free_to_run_do_not_count_as_queued() -> None:
    check_queue(load(num_waiting=10, num_free_seqs=1), 1)
    with pytest.raises(QueueFullError):
        check_queue(load(num_waiting=11, num_free_seqs=1), 1)


def test_retry_after_follows_the_observed_rate_and_is_short_when_nothing_was_measured() -> None:
    with pytest.raises(QueueFullError) as unmeasured:
        check_queue(load(), 1)
    assert unmeasured.value.retry_after_s == 1.0
    with pytest.raises(QueueFullError) as measured:
        check_queue(load(num_waiting=29, started_per_s=0.5), 1)
    assert measured.value.retry_after_s == pytest.approx(40.0)


def test_the_start_rate_counts_time_in_which_nothing_started() -> None:
    rate = StartRate()
    rate.note_step(num_started=0, num_tokens=0, step_time_s=1.0)
    rate.note_step(num_started=2, num_tokens=100, step_time_s=1.0)
    assert rate.started_per_s == pytest.approx(1.0)
    assert rate.tokens_per_s == pytest.approx(50.0)
