"""Each policy's own order of filling, and the laws that all of them obey."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.core.request import NewRequest, Request, RequestId, RequestState, pack_token_ids
from kvist.core.sampling_params import SamplingParams
from kvist.costmodel.online_step_time import OnlineStepTimeModel
from kvist.scheduler.policies.registry import POLICY_FUNCTIONS
from kvist.scheduler.policy import Candidate, Grants, PolicyView

BUDGET = 64
all_policies = pytest.mark.parametrize("policy", sorted(POLICY_FUNCTIONS))


def made(name: str, num_left: int, state: RequestState) -> Request:
    new = NewRequest(
        request_id=RequestId(name),
        prompt_token_ids=pack_token_ids([1] * num_left),
        sampling=SamplingParams(),
        arrival_time_s=0.0,
    )
    tokens = array("i", [1] * num_left)
    return Request(new=new, token_ids=tokens, num_prompt_tokens=num_left, max_total_tokens=num_left + 16, state=state)


def view(
    num_decoding: int = 0,
    prefilling: list[int] | tuple[int, ...] = (),
    waiting: list[int] | tuple[int, ...] = (),
    max_chunk_tokens: int = BUDGET,
    num_admitted_since_idle: int | None = None,
) -> PolicyView:
    """`prefilling` and `waiting` list the tokens left of each prompt."""
    num_running = num_decoding + len(prefilling)
    return PolicyView(
        decoding=[made(f"d{index}", 1, RequestState.RUNNING) for index in range(num_decoding)],
        prefilling=[made(f"p{index}", left, RequestState.RUNNING) for index, left in enumerate(prefilling)],
        waiting=iter(
            [Candidate(made(f"w{index}", left, RequestState.WAITING), left) for index, left in enumerate(waiting)]
        ),
        max_chunk_tokens=max_chunk_tokens,
        num_admitted_since_idle=num_running if num_admitted_since_idle is None else num_admitted_since_idle,
        now=0.0,
        step_times=OnlineStepTimeModel(),
        prefill_slowdown=1.0,
    )


def grants(policy: str, *args: object, **kwargs: object) -> Grants:
    return POLICY_FUNCTIONS[policy](view(*args, **kwargs), BUDGET)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("chunked_prefill", {"d0": 1, "d1": 1, "p0": 30, "p1": 20, "w0": 12}),
        ("prefill_first", {"p0": 30, "p1": 20, "d0": 1, "d1": 1}),  # w0 fits whole into a later step
        ("decode_first", {"d0": 1, "d1": 1, "p0": 30, "p1": 20}),  # no room for all of w0
        ("split_fuse", {"d0": 1, "d1": 1, "p0": 30, "p1": 20, "w0": 7, "w1": 5}),
        ("static", {"p0": 30, "p1": 20}),
    ],
)
def test_each_policy_fills_the_budget_in_its_own_order(policy: str, expected: dict[str, int]) -> None:
    assert grants(policy, 2, [30, 20], [40, 5]).by_request() == expected


def test_chunked_prefill_caps_each_chunk_at_the_threshold() -> None:
    granted = grants("chunked_prefill", 1, [100], [100, 8], max_chunk_tokens=24)
    assert granted.by_request() == {"d0": 1, "p0": 24, "w0": 24, "w1": 8}


def test_prefill_first_takes_whole_prompts_before_any_decode() -> None:
    assert grants("prefill_first", 3, [], [40, 24]).by_request() == {"w0": 40, "w1": 24}
    assert grants("prefill_first", 3, [], [40, 23]).by_request() == {"w0": 40, "w1": 23, "d0": 1}


def test_decode_first_cuts_a_prompt_only_when_nothing_else_runs() -> None:
    assert grants("decode_first", 1, [], [100]).by_request() == {"d0": 1}
    assert grants("decode_first", 0, [], [100]).by_request() == {"w0": 64}


def test_split_fuse_fills_to_exactly_the_budget_with_short_prompts_whole() -> None:
    granted = grants("split_fuse", 4, [200], [10, 100, 20])
    assert granted.num_tokens == BUDGET
    assert granted.by_request() == {"d0": 1, "d1": 1, "d2": 1, "d3": 1, "p0": 60}
    granted = grants("split_fuse", 4, [20, 200, 10])
    assert granted.by_request() == {"d0": 1, "d1": 1, "d2": 1, "d3": 1, "p0": 20, "p1": 30, "p2": 10}


def test_split_fuse_gives_the_oldest_prompt_a_share_that_short_ones_cannot_take() -> None:
    granted = grants("split_fuse", 0, [500, 30, 30, 30])
    assert granted.by_request()["p0"] >= BUDGET // 4
    assert granted.num_tokens == BUDGET


def test_static_pads_prompts_to_the_longest_and_starts_nobody_while_a_batch_runs() -> None:
    granted = grants("static", 0, [], [20, 10, 30])
    assert granted.by_request() == {"w0": 20, "w1": 10}
    assert granted.num_padding_tokens == 10
    assert grants("static", 2, [], [5]).by_request() == {"d0": 1, "d1": 1}


def test_static_still_computes_the_rows_that_are_done() -> None:
    assert grants("static", 2, [], [5], num_admitted_since_idle=6).num_padding_tokens == 4


lengths = st.lists(st.integers(1, 300), max_size=12)


@all_policies
@given(
    num_decoding=st.integers(0, BUDGET),
    prefilling=lengths,
    waiting=lengths,
    max_chunk_tokens=st.sampled_from([1, 16, 40, BUDGET]),
)
def test_laws(policy: str, num_decoding: int, prefilling: list[int], waiting: list[int], max_chunk_tokens: int) -> None:
    seen = view(num_decoding, prefilling, waiting, max_chunk_tokens)
    offered = {request.request_id: request.num_tokens_to_schedule for request in [*seen.decoding, *seen.prefilling]}
    offered |= {RequestId(f"w{index}"): left for index, left in enumerate(waiting)}
    granted = POLICY_FUNCTIONS[policy](seen, BUDGET)
    by_request = granted.by_request()
    assert len(by_request) == len(granted.decodes) + len(granted.chunks), "two grants to one request"
    assert granted.num_tokens <= BUDGET, "over budget"
    assert by_request.keys() <= offered.keys(), "a grant to an unknown request"
    assert all(1 <= num_tokens <= offered[id_] for id_, num_tokens in by_request.items())
    assert bool(by_request) == bool(offered), "no progress, or a grant out of nothing"
    again = POLICY_FUNCTIONS[policy](view(num_decoding, prefilling, waiting, max_chunk_tokens), BUDGET)
    assert again.by_request() == by_request, "the same view gives other grants"
    if policy in ("chunked_prefill", "decode_first", "split_fuse"):
        assert len(granted.decodes) == num_decoding, "a decode is paused"
    if policy == "split_fuse":
        assert granted.num_tokens == min(BUDGET, sum(offered.values())), "the budget is not filled"


@all_policies
def test_an_empty_view_gives_no_grants(policy: str) -> None:
    assert grants(policy).by_request() == {}


@all_policies
def test_a_policy_draws_no_more_candidates_than_the_budget_can_use(policy: str) -> None:
    seen = view(waiting=[40] * 50)
    POLICY_FUNCTIONS[policy](seen, BUDGET)
    assert len(list(seen.waiting)) >= 43
