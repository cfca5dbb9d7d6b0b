"""The native executor gives what the reference gives, and the same bits in any company."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes.plan_loop import PlanLoop, one

from kvist.core.sampling_params import SamplingParams

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.execution.native.packed_weights import Matrix

ARCHITECTURES = ("llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3", "mixtral")
DENSE_FORMATS = ("f32", "hf")
PROMPT = [(7 * i * i + 3 * i) % 500 for i in range(53)]  # longer than three blocks and two windows
SCORED = SamplingParams(temperature=0, prompt_logprobs=3)


@pytest.mark.parametrize("weight_format", DENSE_FORMATS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dense_models_give_the_numbers_of_the_reference(tiny_executor, architecture, weight_format):
    native, reference = (
        one(tiny_executor(architecture, weight_format, executor=name, kv_cache_dtype="float32"), PROMPT, 1, SCORED)
        for name in ("native", "reference")
    )
    got, wanted = ([score.logprob for score in each.prompt_logprobs] for each in (native, reference))
    np.testing.assert_allclose(got, wanted, atol=2e-4)


@pytest.mark.parametrize("poison", [np.inf, np.nan])
@pytest.mark.parametrize("weight_format", ["f32", "q8_0", "q4_k_m"])
def test_numbers_that_are_not_finite_fail_their_request_alone(tiny_executor, weight_format, poison):
    executor = tiny_executor("mistral", weight_format, executor="native")
    runner = executor._runner
    table = runner._weights.shared["embed"]
    rows = np.random.default_rng(0).standard_normal((table.num_outputs, table.width), np.float32)
    rows[499] = poison
    runner._weights.shared["embed"] = Matrix("F32", table.num_outputs, table.width, rows.view(np.uint8).reshape(-1))
    executor.resize(64)  # records the plan anew
    loop = PlanLoop(executor)
    loop.add("bad", [5, 499, 6])
    loop.add("good", [5, 6, 7])
    result = loop.step({"bad": 3, "good": 3})
    assert list(result.errors) == ["bad"]
    assert "not finite" in result.errors["bad"]
    assert len(result.sampled_token_ids[1]) == 1


def test_a_token_outside_the_vocabulary_fails_the_step(tiny_executor):
    loop = PlanLoop(tiny_executor(executor="native"))
    loop.add("broken", [1, 10**6, 3])
    with pytest.raises(IndexError):
        loop.step({"broken": 3})


def test_company_chunks_and_padding_change_no_bit(tiny_executor):
    executor = tiny_executor("qwen3", "q8_0", executor="native")
    alone = one(executor, PROMPT, 6)
    loop = PlanLoop(executor, shuffle_seed=1)
    loop.add("one", PROMPT)
    for i in range(4):
        loop.add(f"other{i}", PROMPT[i : 9 * i + 1])
    loop.step({"other0": 1, "one": 20, "other3": 7})
    loop.step({"other3": 18, "one": 33, "other1": 3}, num_padding_tokens=11)
    loop.generate(6, chunk=10)
    assert loop.requests["one"].output == alone.output
    assert loop.requests["one"].logprobs == alone.logprobs
