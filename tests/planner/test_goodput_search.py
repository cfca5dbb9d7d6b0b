"""The search for the largest rate that keeps an objective, with judges made up and simulated."""

from __future__ import annotations

import pytest
from tests.fakes.planner_cases import STEP_TIMES, cluster, load

from kvist.planner.goodput_search import search_goodput, spread_over_draws
from kvist.planner.operating_point import operate
from kvist.planner.service_level_objective import ServiceLevelObjective
from kvist.planner.trial import Judged, judge, watch

OBJECTIVE = ServiceLevelObjective(ttft_s=0.5, tpot_s=0.05)


def judge_with_limit(limit: float, asked: list[float]) -> object:
    def judge_at(rate: float) -> Judged:
        asked.append(rate)
        holds = rate <= limit
        return Judged(
            goal=0.9, rate_per_s=rate, num_good=100 if holds else 0, num_bad=0 if holds else 100, total=100, holds=holds
        )

    return judge_at


@pytest.mark.parametrize("limit", [0.013, 0.9, 1.0, 37.0, 5000.0])
@pytest.mark.parametrize("max_rate", [float("inf"), 6000.0])
def test_the_limit_lies_in_the_bracket(limit: float, max_rate: float) -> None:
    asked: list[float] = []

    found = search_goodput(
        judge_with_limit(limit, asked),  # type: ignore[arg-type]
        first_rate_per_s=1.0,
        tolerance=0.05,
        max_rate_per_s=max_rate,
    )

    assert found.rate_per_s <= limit <= found.rate_per_s * 1.05
    assert found.next_rate_per_s is not None
    assert limit < found.next_rate_per_s <= found.rate_per_s * 1.05
    assert len(asked) == len(set(asked)) <= 20


def test_a_search_that_cannot_win_ends_early() -> None:
    asked: list[float] = []

    found = search_goodput(
        judge_with_limit(1.5, asked),  # type: ignore[arg-type]
        first_rate_per_s=1.0,
        tolerance=0.01,
        min_rate_per_s=50.0,
    )

    assert asked == [1.0, 2.0]
    assert found.rate_per_s == 1.0


def test_nothing_is_found_where_no_rate_holds() -> None:
    asked: list[float] = []

    found = search_goodput(judge_with_limit(0.0, asked), first_rate_per_s=1.0, tolerance=0.1)  # type: ignore[arg-type]

    assert found.rate_per_s == 0.0
    assert len(asked) < 20


def test_an_early_end_never_changes_the_verdict() -> None:
    the_load = load()
    for rate in (1.0, 4.0, 8.0, 16.0, 40.0):
        records = the_load.at_rate(rate)

        early = judge(cluster(), STEP_TIMES, records, OBJECTIVE, rate)
        late, result = watch(cluster(), STEP_TIMES, records, OBJECTIVE, rate)

        assert early.holds == late.holds
        assert late.is_complete
        assert all(request.outcome == "finished" for request in result.requests)


def test_goodput_of_twice_the_replicas_is_about_twice_as_much() -> None:
    the_load = load(num_requests=120)

    def goodput(num_replicas: int) -> float:
        config = cluster(num_replicas=num_replicas)
        return search_goodput(
            lambda rate: judge(config, STEP_TIMES, the_load.at_rate(rate), OBJECTIVE, rate),
            first_rate_per_s=4.0,
            tolerance=0.05,
        ).rate_per_s

    assert 1.6 < goodput(2) / goodput(1) < 2.6


def test_no_tail_is_quoted_beyond_saturation() -> None:
    the_load = load(num_requests=150)
    calm = operate(cluster(), STEP_TIMES, the_load, OBJECTIVE, 2.0)

    busy = operate(cluster(), STEP_TIMES, the_load, OBJECTIVE, 2.0 * calm.capacity_per_s)

    assert calm.ttft.p99 is not None
    assert 0.0 < calm.load_factor < 0.5
    assert busy.is_saturated
    assert busy.ttft.p99 is None
    assert busy.tpot.p90 is None


def test_draws_say_how_sure_a_goodput_is() -> None:
    spread = spread_over_draws([9.0, 10.0, 11.0])

    assert spread.mean == 10.0
    assert spread.half_width == pytest.approx(4.30 / 3**0.5, rel=1e-3)
    assert spread_over_draws([9.0]).half_width is None
