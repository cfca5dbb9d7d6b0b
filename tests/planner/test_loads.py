"""The loads that plans are judged on."""

from __future__ import annotations

import pytest
from tests.fakes.planner_cases import load

from kvist.planner.bounds import computed_share, load_facts
from kvist.planner.plan_load import draws_of_load, draws_of_trace
from kvist.repro.distserve_placement import OPT_TOKENS, sharegpt
from kvist.workload.load_file import scenario_loads, shipped_loads
from kvist.workload.trace_record import TextPart, TraceRecord, count_prompt_tokens


def test_a_load_at_another_rate_is_the_same_but_for_its_times() -> None:
    slow, fast = load().at_rate(2.0), load().at_rate(8.0)

    assert [each.prompt for each in slow] == [each.prompt for each in fast]
    assert [each.arrival_s for each in slow] == pytest.approx([4 * each.arrival_s for each in fast])
    assert (len(fast) - 1) / (fast[-1].arrival_s - fast[0].arrival_s) == pytest.approx(8.0)


def test_lengths_of_sharegpts_kind_have_the_published_means() -> None:
    facts = load_facts(sharegpt(is_quick=False))
    lengths = sharegpt(is_quick=False).lengths()

    assert facts.mean_prompt_tokens == pytest.approx(755, rel=0.02)
    assert facts.mean_output_tokens == pytest.approx(200, rel=0.03)
    assert max(prompt + output for prompt, output in lengths) <= OPT_TOKENS


def test_what_a_cache_can_save_is_not_counted_as_work() -> None:
    records = [
        TraceRecord(
            index=i,
            arrival_s=float(i),
            prompt=(TextPart("shared", 0, 90), TextPart(str(i), 0, 10)),
            num_output_tokens=1,
        )
        for i in range(3)
    ]

    assert computed_share(records) == pytest.approx((90 + 30) / 300)
    assert computed_share(load().draws[0]) == 1.0


def test_draws_of_a_trace_are_stretches_of_it() -> None:
    records = load(num_requests=50).draws[0]

    the_load = draws_of_trace("trace", records, num_draws=4, num_requests=15)

    assert [len(draw) for draw in the_load.draws] == [15, 15, 15]
    assert the_load.draws[1][0].prompt == records[15].prompt
    assert [record.index for record in the_load.draws[1]] == list(range(15))
    assert the_load.draws[1][0].arrival_s == 0.0


@pytest.mark.parametrize("name", list(scenario_loads().loads))
def test_every_scenario_gives_requests(name: str) -> None:
    the_load = draws_of_load(shipped_loads().load(name), num_draws=2, num_requests=30)

    assert len(the_load.draws) == 2
    assert all(count > 0 for count in count_prompt_tokens(the_load.draws[0]))


def test_capacity_is_measured_with_requests_that_wait_for_nobody() -> None:
    the_load = draws_of_load(shipped_loads().load("service_multi_turn"), num_draws=1, num_requests=24)

    at_once = the_load.at_once()

    assert all(record.after is None and record.arrival_s == 0.0 for record in at_once)
    assert count_prompt_tokens(at_once) == count_prompt_tokens(the_load.draws[0])
    assert at_once[1].prompt[: len(at_once[0].prompt)] == at_once[0].prompt  # what turns share they still share
