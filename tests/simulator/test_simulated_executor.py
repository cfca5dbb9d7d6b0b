"""The referee refuses every plan that breaks the executor's contract."""

from __future__ import annotations

from typing import Any

import pytest

from kvist.core.request import RequestId, pack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import BlockMove, BlockMoveKind, ScheduledRequestData, StepPlan, TableEdit
from kvist.simulator.simulated_executor import PlanError, SimulatedExecutor, fixed_duration, linear_duration

A, B = RequestId("a"), RequestId("b")


def executor() -> SimulatedExecutor:
    return SimulatedExecutor(num_blocks=8, block_size=4, duration=fixed_duration(1.0))


def new(request_id: RequestId, tokens: list[int]) -> ScheduledRequestData:
    return ScheduledRequestData(
        request_id=request_id,
        token_ids=pack_token_ids(tokens),
        num_prompt_tokens=len(tokens),
        sampling=SamplingParams(),
        sample_index=0,
        eos_token_ids=(),
    )


def plan(rows: list[tuple[RequestId, int, int, bool]], **fields: Any) -> StepPlan:
    return StepPlan(
        step_id=fields.pop("step_id", 0),
        request_ids=[row[0] for row in rows],
        start_positions=[row[1] for row in rows],
        num_scheduled_tokens=[row[2] for row in rows],
        samples=[row[3] for row in rows],
        num_total_tokens=sum(row[2] for row in rows),
        **fields,
    )


def first_step(**fields: Any) -> StepPlan:
    return plan(
        [(A, 0, 5, True)], new_requests=[new(A, [1, 2, 3, 4, 5])], table_edits=[TableEdit(A, 0, [0, 1])], **fields
    )


def test_a_sound_plan_samples_one_token_for_rows_that_sample() -> None:
    result = executor().finish_step(executor().begin_step(first_step()))
    assert [len(tokens) for tokens in result.sampled_token_ids] == [1]


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        ([], {}, "empty"),
        ([(A, 5, 1, True), (A, 5, 1, True)], {}, "two rows"),
        ([(A, 5, 2, True)], {}, "of 6 tokens"),
        ([(A, 5, 0, True)], {}, "chunk of 0"),
        ([(A, 4, 1, True)], {}, "samples before"),
        ([(B, 0, 1, True)], {}, "never introduced"),
        ([(A, 5, 1, True)], {"table_edits": [TableEdit(A, 1, [])]}, "do not cover"),
        ([(A, 5, 1, True)], {"table_edits": [TableEdit(A, 1, [0])]}, "twice"),
        ([(A, 5, 1, True)], {"table_edits": [TableEdit(A, 1, [8])]}, "outside the pool"),
        ([(A, 5, 1, True)], {"table_edits": [TableEdit(A, 1, [7])]}, "reads wrong KV"),
        ([(A, 5, 1, True)], {"table_edits": [TableEdit(A, 5, [7])]}, "gap"),
        ([(A, 5, 1, True)], {"new_requests": [new(A, [1])]}, "introduced twice"),
        (
            [(A, 5, 1, True), (B, 0, 1, True)],
            {"new_requests": [new(B, [9])], "table_edits": [TableEdit(B, 0, [1])]},
            "is written by",
        ),
        (
            [(B, 4, 1, True)],
            {"new_requests": [new(B, [1, 2, 3, 4, 9])], "table_edits": [TableEdit(B, 0, [7, 2])]},
            "reads wrong KV",
        ),
    ],
)
def test_the_referee_refuses(rows: list[Any], fields: dict[str, Any], message: str) -> None:
    checked = executor()
    checked.begin_step(first_step())
    with pytest.raises(PlanError, match=message):
        checked.begin_step(plan(rows, step_id=1, **fields))


def test_a_shared_block_may_be_read_by_many_and_a_copy_holds_what_was_copied() -> None:
    checked = executor()
    checked.begin_step(first_step())
    checked.begin_step(
        plan(
            [(A, 5, 1, True), (B, 5, 1, True)],
            step_id=1,
            new_requests=[new(B, [1, 2, 3, 4, 5, 6])],
            table_edits=[TableEdit(B, 0, [0, 2])],
            block_moves=[BlockMove(BlockMoveKind.COPY, 1, 2, 1)],
        )
    )


def test_the_token_depends_on_the_request_and_the_position_alone() -> None:
    together, alone = executor(), executor()
    both = plan(
        [(B, 0, 3, True), (A, 0, 5, True)],
        new_requests=[new(A, [1, 2, 3, 4, 5]), new(B, [7, 8, 9])],
        table_edits=[TableEdit(A, 0, [0, 1]), TableEdit(B, 0, [2])],
    )
    assert (
        together.begin_step(both).result.sampled_token_ids[1]
        == alone.begin_step(first_step()).result.sampled_token_ids[0]
    )


def test_a_linear_duration_counts_padding() -> None:
    duration = linear_duration(per_step_s=1.0, per_token_s=0.5)
    assert duration(first_step(num_padding_tokens=3)) == pytest.approx(1.0 + 0.5 * 8)
