"""A request's results depend on its tokens alone: not on chunks, company, block tables, copies or preemption."""

from __future__ import annotations

import pytest
from tests.fakes.plan_loop import GREEDY, PlanLoop, one

from kvist.core.sampling_params import SamplingParams

ARCHITECTURES = ("llama", "llama3", "mistral", "mixtral", "qwen2", "qwen3", "gemma3")
PROMPT = [(7 * i * i + 3 * i) % 500 for i in range(53)]  # longer than three blocks and two windows
NUM_TOKENS = 6


def assert_same(request, expected, tolerance=2e-4):
    assert request.output == expected.output
    for got, want in zip(request.logprobs, expected.logprobs, strict=True):
        assert got.logprob == pytest.approx(want.logprob, abs=tolerance)
        assert got.top_logprobs == pytest.approx(want.top_logprobs, abs=tolerance)


@pytest.fixture(params=ARCHITECTURES)
def executor(request, tiny_executor):
    return tiny_executor(request.param)


@pytest.fixture
def expected(executor):
    return one(executor, PROMPT, NUM_TOKENS)


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 31])
def test_chunked_prefill_gives_the_same_tokens(executor, expected, chunk):
    assert_same(one(executor, PROMPT, NUM_TOKENS, chunk=chunk), expected)


def test_scattered_block_tables_give_the_same_tokens(executor, expected):
    assert_same(one(executor, PROMPT, NUM_TOKENS, shuffle_seed=3), expected)


def test_company_in_the_batch_changes_nothing(executor, expected):
    loop = PlanLoop(executor, shuffle_seed=1)
    loop.add("one", PROMPT)
    for i in range(4):
        loop.add(f"other{i}", PROMPT[i : 9 * i + 1])
    loop.step({"other0": 1, "one": 20, "other3": 7})
    loop.step({"other3": 18, "one": 33, "other1": 3}, num_padding_tokens=11)
    loop.generate(NUM_TOKENS, chunk=10)
    assert_same(loop.requests["one"], expected)


@pytest.mark.parametrize("num_shared", [1, 16, 37])
def test_a_prefix_shared_or_copied_on_write_gives_the_same_tokens(executor, expected, num_shared):
    loop = PlanLoop(executor, shuffle_seed=2)
    loop.add("donor", [*PROMPT[:num_shared], *range(40)])
    loop.generate(2)
    loop.add("one", PROMPT)
    loop.share_prefix("donor", "one", num_shared)
    loop.generate(NUM_TOKENS)
    assert_same(loop.requests["one"], expected)


def test_preemption_and_recompute_give_the_same_tokens(executor, expected):
    loop = PlanLoop(executor)
    loop.add("one", PROMPT)
    loop.generate(3)
    loop.preempt("one")
    loop.generate(NUM_TOKENS, chunk=13)
    assert_same(loop.requests["one"], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_kv_is_read_back_as_it_was_rounded_in_any_chunking(tiny_executor, dtype):
    executor = tiny_executor("llama", kv_cache_dtype=dtype)
    whole = one(executor, PROMPT, NUM_TOKENS)
    assert_same(one(executor, PROMPT, NUM_TOKENS, chunk=5), whole, tolerance=5e-3)  # a last bit may round the other way
    exact = one(tiny_executor("llama"), PROMPT, 1)
    assert whole.logprobs[0].top_logprobs == pytest.approx(exact.logprobs[0].top_logprobs, abs=0.1)
    assert whole.logprobs[0].top_logprobs != pytest.approx(exact.logprobs[0].top_logprobs, abs=1e-6)


def test_scores_of_a_text_equal_those_from_generating_it(executor, expected):
    text = PROMPT + expected.output
    scored = one(executor, text, 1, SamplingParams(temperature=0, prompt_logprobs=5), chunk=19)
    assert len(scored.prompt_logprobs) == len(text) - 1
    for got, want in zip(scored.prompt_logprobs[len(PROMPT) - 1 :], expected.logprobs, strict=True):
        assert (got.token_id, got.rank) == (want.token_id, want.rank)
        assert got.logprob == pytest.approx(want.logprob, abs=2e-4)


def test_a_seed_gives_the_same_sample_in_any_company_and_after_preemption(tiny_executor):
    sampling = SamplingParams(temperature=1.5, top_p=0.9, seed=42, presence_penalty=0.5)
    executor = tiny_executor("llama")
    alone = one(executor, PROMPT, 12, sampling)
    loop = PlanLoop(executor)
    loop.add("first", PROMPT[:5], GREEDY)
    loop.add("one", PROMPT, sampling)
    loop.generate(5, chunk=8)
    loop.preempt("one")
    loop.generate(12)
    assert loop.requests["one"].output == alone.output


def test_samples_of_one_prompt_differ_by_their_index(tiny_executor):
    loop = PlanLoop(tiny_executor("llama"))
    for i in range(3):
        loop.add(f"sample{i}", PROMPT[:9], SamplingParams(temperature=1.5, seed=1), sample_index=i)
    loop.generate(8)
    assert len({tuple(request.output) for request in loop.requests.values()}) == 3
