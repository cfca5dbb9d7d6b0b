"""A step's work adds up, however it is put together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvist.core.request import RequestId
from kvist.core.step_plan import StepPlan
from kvist.costmodel.step_work import StepWork, work_of_plan

chunks = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3000), st.booleans()), max_size=12)


def test_decodes_and_chunks_of_prompts_are_counted_apart() -> None:
    work = StepWork.of([(1, 9), (1, 99), (3, 2), (4, 0)], num_sampled=3)
    assert work == StepWork(
        num_tokens=9,
        num_sequences=4,
        num_sampled=3,
        decode_context_tokens=110,
        prefill_pairs=(3 + 4 + 5) + (1 + 2 + 3 + 4),
        prefill_context_tokens=9,
    )


@given(chunks)
def test_chunk_by_chunk_is_the_same_as_all_at_once(parts: list[tuple[int, int, bool]]) -> None:
    grown = StepWork()
    for num_new, num_context, is_sampled in parts:
        grown = grown.plus(num_new, num_context, is_sampled=is_sampled)
    num_sampled = sum(is_sampled for _, _, is_sampled in parts)
    assert grown == StepWork.of([(new, context) for new, context, _ in parts], num_sampled=num_sampled)


@given(st.integers(2, 200), st.integers(0, 200), st.integers(0, 500))
def test_a_prompt_in_two_chunks_has_the_pairs_of_the_whole(first: int, second: int, context: int) -> None:
    second += 2
    whole = StepWork.of([(first + second, context)], num_sampled=1)
    halves = StepWork.of([(first, context), (second, context + first)], num_sampled=1)
    assert halves.prefill_pairs == whole.prefill_pairs


def test_a_plan_counts_its_padding_and_takes_the_logits_of_each_draft() -> None:
    ids = [RequestId("a"), RequestId("b"), RequestId("c")]
    plan = StepPlan(
        step_id=0,
        request_ids=ids,
        start_positions=[10, 20, 0],
        num_scheduled_tokens=[1, 3, 8],
        samples=[True, True, False],
        num_total_tokens=12,
        num_padding_tokens=4,
        draft_token_ids={ids[1]: [5, 6]},
    )
    assert work_of_plan(plan) == StepWork(
        num_tokens=16,
        num_sequences=3,
        num_sampled=4,
        decode_context_tokens=11,
        prefill_pairs=(21 + 22 + 23) + 36,
        prefill_context_tokens=23 + 8,
    )
