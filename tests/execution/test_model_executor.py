"""What the reference executor does with plans besides computing them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes.plan_loop import GREEDY, PlanLoop, one

from kvist.core.request import RequestId
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_plan import StepPlan

POISON = 499  # a token whose embedding is made infinite


@pytest.fixture
def poisoned(tiny_executor):
    executor = tiny_executor("mistral", "q8_0")  # whose output matrix is not tied to the embeddings
    executor._runner._weights.shared["embed"][POISON] = np.inf
    return executor


def test_numbers_that_are_not_finite_fail_their_request_alone(poisoned):
    loop = PlanLoop(poisoned)
    loop.add("bad", [5, POISON, 6])
    loop.add("good", [5, 6, 7])
    result = loop.step({"bad": 3, "good": 3})
    assert "not finite" in result.errors["bad"]
    assert list(result.errors) == ["bad"]
    assert result.sampled_token_ids[0] == ()
    assert len(result.sampled_token_ids[1]) == 1


def test_a_chunk_that_is_not_finite_is_found_before_its_request_samples(poisoned):
    loop = PlanLoop(poisoned)
    loop.add("bad", [POISON, 5, 6])
    assert "bad" in loop.step({"bad": 1}).errors


def test_an_impossible_option_fails_its_request_alone(tiny_executor):
    loop = PlanLoop(tiny_executor())
    loop.add("bad", [1, 2], SamplingParams(logit_bias={10**6: 1.0}))
    loop.add("good", [1, 2])
    result = loop.step({"bad": 2, "good": 2})
    assert "logit_bias" in result.errors["bad"]
    assert len(result.sampled_token_ids[1]) == 1


def test_forgetting_a_request_that_is_not_known_is_no_fault(tiny_executor):
    plan = StepPlan(0, [], [], [], [], 0, dropped_request_ids=[RequestId("never seen")])
    assert tiny_executor().begin_step(plan).sampled_token_ids == []


def test_drafts_of_a_model_that_is_not_there_are_refused(tiny_executor):
    plan = StepPlan(0, [], [], [], [], 0, num_model_drafts={RequestId("r"): 1})
    with pytest.raises(ValueError, match="draft model"):
        tiny_executor().begin_step(plan)


def test_a_step_after_a_failed_one_works(tiny_executor):
    executor = tiny_executor()
    loop = PlanLoop(executor)
    loop.add("broken", [1, 10**6, 3])  # a token outside the vocabulary, which the edge should have refused
    with pytest.raises(IndexError):
        loop.step({"broken": 3})
    loop.dropped.append("broken")
    del loop.requests["broken"]
    loop.add("next", [1, 2, 3])
    loop.generate(2)
    assert loop.requests["next"].output == one(executor, [1, 2, 3], 2).output


def test_prompt_logprobs_come_in_order_and_leave_out_the_first_token(tiny_executor):
    prompt = [9, 8, 7, 6, 5]
    sampling = SamplingParams(temperature=0, prompt_logprobs=2)
    whole = one(tiny_executor(), prompt, 1, sampling)
    assert [score.token_id for score in whole.prompt_logprobs] == prompt[1:]
    assert all(len(score.top_token_ids) == 2 for score in whole.prompt_logprobs)
    chunked = one(tiny_executor(), prompt, 1, sampling, chunk=2)
    assert [score.token_id for score in chunked.prompt_logprobs] == prompt[1:]


def test_processed_logprobs_cover_prompt_and_output(tiny_executor):
    sampling = SamplingParams(temperature=0.5, top_k=3, seed=1, logprobs=5, prompt_logprobs=5)
    request = one(tiny_executor(logprobs_mode="processed_logprobs"), [9, 8, 7], 2, sampling)
    assert all(len(entry.top_token_ids) == 3 for entry in request.logprobs + request.prompt_logprobs)
    assert sum(np.exp(request.logprobs[0].top_logprobs)) == pytest.approx(1.0)


def test_padding_changes_no_result(tiny_executor):
    executor = tiny_executor()
    padded, plain = PlanLoop(executor), one(executor, [3, 1, 4, 1, 5], 1)
    padded.add("one", [3, 1, 4, 1, 5])
    padded.step({"one": 5}, num_padding_tokens=27)
    assert padded.requests["one"].output == plain.output


def test_requests_without_a_seed_do_not_repeat_each_other(tiny_executor):
    loop = PlanLoop(tiny_executor())
    for name in "abcd":
        loop.add(name, [3, 1, 4], SamplingParams(temperature=2.0))
    loop.generate(8)
    assert len({tuple(request.output) for request in loop.requests.values()}) == 4


def test_untouched_blocks_take_no_memory(tiny_executor):
    executor = tiny_executor(num_blocks=1 << 20)  # tens of gigabytes, were they touched
    assert executor.num_blocks == 1 << 20
    loop = PlanLoop(executor)
    loop.add("one", [1, 2, 3], GREEDY)
    loop.generate(1)
    assert len(loop.requests["one"].output) == 1
