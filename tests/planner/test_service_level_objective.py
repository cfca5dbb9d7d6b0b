"""Objectives as users write them."""

from __future__ import annotations

from array import array

import pytest

from kvist.core.errors import ConfigError
from kvist.planner.service_level_objective import ServiceLevelObjective, parse_objective
from kvist.simulator.simulation_result import SimulatedRequest


def test_times_are_read_in_milliseconds_unless_they_say_seconds() -> None:
    objective = parse_objective("ttft=200,tpot=0.05s,attainment=95%")

    assert objective == ServiceLevelObjective(ttft_s=0.2, tpot_s=0.05, attainment=0.95)


def test_an_objective_is_written_as_it_is_read() -> None:
    objective = parse_objective("tpot=50ms,attainment=0.99")

    assert parse_objective(objective.text) == objective


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft=0.25", "write ttft=0.25s"),
        ("tfft=200ms", "ttft"),
        ("ttft=fast", "write a time"),
        ("ttft=200ms,ttft=1s", "twice"),
        ("attainment=0.9", "needs a target"),
        ("ttft=200ms,attainment=1.5", "attainment is a share"),
        ("", "there is"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_objective(text)


def test_a_request_is_good_only_within_all_targets() -> None:
    objective = ServiceLevelObjective(ttft_s=1.0, tpot_s=0.1)

    def request(*times_s: float, outcome: str = "finished") -> SimulatedRequest:
        times = array("q", (round(time_s * 1e9) for time_s in times_s))
        return SimulatedRequest(
            index=0, arrival_ns=0, num_prompt_tokens=1, max_tokens=9, outcome=outcome, token_times_ns=times
        )

    assert objective.is_good(request(1.0, 1.1, 1.2))
    assert objective.is_good(request(0.5))
    assert not objective.is_good(request(1.1, 1.2))
    assert not objective.is_good(request(0.5, 0.7))
    assert not objective.is_good(request(0.5, 0.6, outcome="rejected"))
    assert not objective.is_good(request())
