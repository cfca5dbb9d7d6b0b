"""Targets in milliseconds and as multiples of the unloaded latency."""

from __future__ import annotations

import pytest

from kvist.core.errors import ConfigError
from kvist.metrics.served_request import Outcome, ServedRequest, Targets
from kvist.metrics.service_level import parse_levels, targets_for
from kvist.metrics.unloaded_latency import UnloadedLatency, UnloadedPoint, unloaded_points


def test_targets_are_read_and_applied() -> None:
    unloaded = UnloadedLatency(ttft=[(100, 0.2), (300, 0.6)], tpot=[(100, 0.1), (300, 0.3)])

    def targets(words: list[str], num_prompt_tokens: int) -> Targets:
        levels = parse_levels(words)
        return targets_for(levels, unloaded, num_prompt_tokens=num_prompt_tokens, num_output_tokens=40)

    words = ["ttft:5x", "tpot:50", "e2el:2000"]
    assert targets(words, 200) == Targets(ttft_s=pytest.approx(2.0), tpot_s=0.05, e2el_s=2.0)
    assert targets(words, 10).ttft_s == 1.0
    assert targets(words, 1000).ttft_s == pytest.approx(10.0)
    assert targets(["tpot:3x"], 200).tpot_s == pytest.approx(3 * 0.22)  # half-way through the answer
    assert targets([], 10) == Targets()


def test_of_repeats_the_shortest_counts_and_no_length_is_slower_than_a_longer_one() -> None:
    points = [UnloadedPoint(100, 8, 0.2, 0.03), UnloadedPoint(100, 8, 0.4, 0.01), UnloadedPoint(200, 8, 0.1, 0.02)]
    unloaded = UnloadedLatency.of(points)
    assert (unloaded.ttft, unloaded.tpot) == ([(100, 0.1), (200, 0.1)], [(104, 0.01), (204, 0.02)])
    with pytest.raises(ValueError, match="no unloaded"):
        UnloadedLatency.of([])


def test_one_measured_length_stands_for_all() -> None:
    unloaded = UnloadedLatency.of([UnloadedPoint(100, 8, 0.2, 0.03)])
    assert (unloaded.ttft_s(5000), unloaded.tpot_s(1, 1)) == (0.2, 0.03)


def test_failed_and_single_token_requests_say_nothing_of_it() -> None:
    def request(outcome: Outcome, *deliveries: tuple[float, int]) -> ServedRequest:
        return ServedRequest(
            index=0, arrival_s=0, sent_s=0, finished_s=9, outcome=outcome, num_prompt_tokens=7, samples=[deliveries]
        )

    good = request(Outcome.COMPLETED, (1.0, 1), (3.0, 2))
    points = unloaded_points([good, request(Outcome.FAILED, (1.0, 2)), request(Outcome.COMPLETED, (1.0, 1))])
    assert points == [UnloadedPoint(7, 3, 1.0, 1.0)]


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:0", "ttft:-1x", "itl:5", "e2el:3x", "tpot:nan", "tpot:5 ms"])
def test_a_target_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="--goodput"):
        parse_levels([word])
