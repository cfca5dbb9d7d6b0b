"""Targets in milliseconds and as multiples of the unloaded latency."""

from __future__ import annotations

import pytest

from kvist.core.errors import ConfigError
from kvist.metrics.served_request import Outcome, ServedRequest, Targets
from kvist.metrics.service_level import (
    UnloadedLatency,
    UnloadedPoint,
    parse_levels,
    targets_for,
    unloaded_points,
)


def test_targets_are_read_and_applied() -> None:
    unloaded = UnloadedLatency([UnloadedPoint(100, 0.2, 0.01), UnloadedPoint(300, 0.6, 0.03)])
    levels = parse_levels(["ttft:5x", "tpot:50", "e2el:2000"])
    assert targets_for(levels, unloaded, 200) == Targets(ttft_s=pytest.approx(2.0), tpot_s=0.05, e2el_s=2.0)
    assert targets_for(levels, unloaded, 10).ttft_s == 1.0
    assert targets_for(levels, unloaded, 1000).ttft_s == 3.0
    assert targets_for(parse_levels([]), None, 10) == Targets()


def test_of_repeats_the_shortest_counts() -> None:
    unloaded = UnloadedLatency([UnloadedPoint(100, 0.2, 0.03), UnloadedPoint(100, 0.4, 0.01)])
    assert unloaded.at(100) == UnloadedPoint(100, 0.2, 0.01)
    with pytest.raises(ValueError, match="no unloaded"):
        UnloadedLatency([])


def test_failed_and_single_token_requests_say_nothing_of_it() -> None:
    def request(outcome: Outcome, *deliveries: tuple[float, int]) -> ServedRequest:
        return ServedRequest(
            index=0, arrival_s=0, sent_s=0, finished_s=9, outcome=outcome, num_prompt_tokens=7, samples=[deliveries]
        )

    good = request(Outcome.COMPLETED, (1.0, 1), (3.0, 2))
    points = unloaded_points([good, request(Outcome.FAILED, (1.0, 2)), request(Outcome.COMPLETED, (1.0, 1))])
    assert points == [UnloadedPoint(7, 1.0, 1.0)]


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:0", "ttft:-1x", "itl:5", "e2el:3x", "tpot:nan", "tpot:5 ms"])
def test_a_target_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="--goodput"):
        parse_levels([word])
