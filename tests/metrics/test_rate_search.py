"""The search closes in on the limit, and says how sure it is."""

from __future__ import annotations

import pytest

from kvist.metrics.rate_search import MAX_STEPS, Attained, RateFound, search_rate, wilson_interval


def search(limit: float, *, own_rate: float = 2.0, total: int = 1000, share_above: float = 0.5) -> RateFound:
    """Against a server that keeps the targets of all up to `limit` requests per second."""
    searching = search_rate(goal=0.9, tolerance=0.05)
    factor = next(searching)
    while True:
        rate = factor * own_rate
        good = total if rate <= limit else round(total * share_above)
        try:
            factor = searching.send(Attained(rate, good, total))
        except StopIteration as end:
            found: RateFound = end.value
            return found


@pytest.mark.parametrize("limit", [0.03, 0.7, 2.0, 3.1, 97.0])
def test_the_limit_lies_in_the_bracket_that_is_found(limit: float) -> None:
    found = search(limit)
    assert found.max_rate_per_s is not None
    assert found.next_rate_per_s is not None
    assert found.max_rate_per_s <= limit < found.next_rate_per_s <= 1.0501 * found.max_rate_per_s
    assert (found.low_rate_per_s, found.high_rate_per_s) == (found.max_rate_per_s, found.next_rate_per_s)


def test_requests_that_miss_the_targets_alone_end_the_search() -> None:
    searching = search_rate(goal=0.9, tolerance=0.05)
    next(searching)
    searching.send(Attained(2.0, 0, 100))
    with pytest.raises(StopIteration) as end:
        searching.send(Attained(1.0, 0, 100, were_alone=True))
    assert [step.rate_per_s for step in end.value.value.steps] == [1.0, 2.0]


def test_a_server_that_never_keeps_them_or_always_does_ends_the_search() -> None:
    assert search(0.0).max_rate_per_s is None
    always = search(float("inf"))
    assert always.next_rate_per_s is None
    assert len(always.steps) == MAX_STEPS


def test_an_undecided_step_is_measured_again_and_pooled() -> None:
    found = search(3.0, total=20, share_above=0.85)
    undecided = [step for step in found.steps if step.rate_per_s > 3.0]
    assert all(step.total == 40 for step in undecided)
    assert found.high_rate_per_s is None


def test_wilsons_interval_holds_the_share_and_narrows() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    low, high = wilson_interval(90, 100)
    assert (round(low, 4), round(high, 4)) == (0.8256, 0.9448)
    assert wilson_interval(900, 1000)[0] > low
    assert wilson_interval(10, 10)[1] == 1.0
