"""The whole engine: greedy output does not depend on any feature being on or off, nor on any two of them together.

On the native executor the log-probabilities are equal to the last bit as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.pairwise import all_pairs

from kvist import LLM, RequestOutput, SamplingParams
from kvist.config.scheduler_config import POLICIES, QUEUE_ORDERS

NUM_TOKENS = 10
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)
WORDS = [(7 * i * i + 3 * i) % 400 + 5 for i in range(100)]
# Prefixes that end inside blocks, at their borders and nowhere; a prompt twice; one token alone.
PROMPTS = [
    WORDS[:1],
    WORDS[:96],
    WORDS[:40],
    WORDS[:32] + WORDS[60:80],
    WORDS[:47],
    WORDS[50:],
    WORDS[:40],
    WORDS[9:21],
]
LONGEST = 128
# A feature with a switch belongs here: it is then tried with every value of every other one.
AXES: dict[str, tuple[Any, ...]] = {
    "policy": POLICIES,
    "queue_order": QUEUE_ORDERS,
    "enable_prefix_caching": (True, False),
    "eviction_policy": ("lru", "lfu", "priority"),
    "block_size": (16, 32, 64),
    "max_num_batched_tokens": (16, 48, 256),
    "long_prefill_token_threshold": (0, 20),
    "max_num_seqs": (2, 8, 128),
    "max_total_tokens": (192, 4096),  # the first has room for one request and a half
    "max_steps_in_flight": (1, 2),
    "num_threads": (1, 2, 4),
    "engine_client": ("thread", "process"),
    "speculative_method": ("none", "ngram", "draft_model"),
    "kv_cache_dtype": ("auto", "float32", "int8"),
}
NATIVE_MODELS = (("llama", "q4_k_m"), ("gemma3", "q8_0"), ("mixtral", "q5_0"), ("qwen2", "f32"))
Answer = tuple[list[int], list[dict[int, float]]]


def start(path: str, executor: str, *, draft: str | None = None, **options: Any) -> LLM:
    if options.get("speculative_method", "none") != "none":
        options["max_steps_in_flight"] = 1  # drafts follow tokens whose values are known
    if options.get("speculative_method") == "draft_model":
        options["speculative_model"] = draft
    often = {"speculative_adaptive": False, "prompt_lookup_min": 1}  # where drafts are on: wherever there can be one
    return LLM(path, executor=executor, check_invariants=True, **{"max_model_len": LONGEST, **often, **options})


def answer(output: RequestOutput) -> Answer:
    sample = output.outputs[0]
    scores = [{token: entry.logprob for token, entry in each.items()} for each in sample.logprobs or []]
    return sample.token_ids, scores


@pytest.fixture(scope="module")
def alone(tiny_model: Any) -> Callable[..., list[Answer]]:
    """Each prompt by itself in an engine without any feature."""
    known: dict[tuple[str, str, str, str], list[Answer]] = {}

    def compute(architecture: str, weight_format: str, executor: str, kv_cache_dtype: str = "auto") -> list[Answer]:
        key = (architecture, weight_format, executor, kv_cache_dtype)
        if key not in known:
            options = {"enable_prefix_caching": False, "max_num_batched_tokens": LONGEST, "num_threads": 1}
            path = str(tiny_model(architecture, weight_format))
            with start(path, executor, kv_cache_dtype=kv_cache_dtype, num_blocks=64, **options) as llm:
                known[key] = [answer(llm.generate([prompt], PARAMS)[0]) for prompt in PROMPTS]
        return known[key]

    return compute


def label(options: dict[str, Any]) -> str:
    return "-".join(str(value) for value in options.values())


@pytest.mark.slow
@pytest.mark.parametrize("options", all_pairs(AXES), ids=label)
def test_features_in_pairs_change_no_bit_on_the_native_executor(alone, tiny_model, options) -> None:
    architecture, weight_format = NATIVE_MODELS[len(label(options)) % len(NATIVE_MODELS)]
    path, draft = str(tiny_model(architecture, weight_format)), str(tiny_model("llama", "q8_0"))
    with start(path, "native", draft=draft, **options) as llm:
        first, again = (llm.generate(PROMPTS, PARAMS, priority=[i % 3 for i in range(8)]) for _ in range(2))
    expected = alone(architecture, weight_format, "native", options["kv_cache_dtype"])
    assert [answer(output) for output in first] == expected
    assert [answer(output) for output in again] == expected
    if options["enable_prefix_caching"] and options["max_total_tokens"] > 1000:
        assert max(output.num_cached_tokens for output in again) >= 64  # whole blocks of the longest, at least


@pytest.mark.slow
@pytest.mark.parametrize("options", all_pairs({name: AXES[name] for name in list(AXES)[:10]}), ids=label)
def test_features_in_pairs_change_no_token_on_the_reference_executor(alone, tiny_model, options) -> None:
    with start(str(tiny_model("llama", "f32")), "reference", num_threads=1, **options) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
    assert [answer(output)[0] for output in outputs] == [ids for ids, _ in alone("llama", "f32", "reference")]


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "float16", "bfloat16"])
def test_every_number_format_of_kv_is_read_back_alike(alone, tiny_model, kv_cache_dtype) -> None:
    options = {"kv_cache_dtype": kv_cache_dtype, "max_num_batched_tokens": 32, "max_total_tokens": 256}
    with start(str(tiny_model("qwen3", "q4_k_m")), "native", **options) as llm:
        for _ in range(2):
            outputs = llm.generate(PROMPTS, PARAMS)
            assert [answer(output) for output in outputs] == alone("qwen3", "q4_k_m", "native", kv_cache_dtype)


def test_preempted_requests_end_alike(tiny_model) -> None:
    path = str(tiny_model("qwen3", "q4_k_m"))
    params = SamplingParams(temperature=0.0, max_tokens=150, logprobs=2, ignore_eos=True)
    prompts = [WORDS[i : i + 10] for i in range(6)]
    answers = []
    for max_total_tokens in (320, 4096):  # longer outputs than admission expects at first
        options = {"max_model_len": 256, "max_total_tokens": max_total_tokens, "max_num_batched_tokens": 64}
        with start(path, "native", **options) as llm:
            answers.append([answer(output) for output in llm.generate(prompts, params)])
            preemptions = next(each.value for each in llm.get_metrics() if each.name == "kvist:preemptions_total")
        assert (preemptions > 0) == (max_total_tokens == 320)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("num_requests", [2, 33, 128])
def test_company_changes_no_bit(alone, tiny_model, num_requests) -> None:
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(num_requests)]
    options = {"max_num_seqs": 128, "max_num_batched_tokens": 512, "num_blocks": 128 * 8}
    with start(str(tiny_model("llama", "q4_k_m")), "native", **options) as llm:
        outputs = llm.generate(prompts, PARAMS)
    expected = alone("llama", "q4_k_m", "native")
    assert [answer(output) for output in outputs] == [expected[i % len(PROMPTS)] for i in range(num_requests)]


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_gives_the_same_bits_in_company_and_from_the_cache(default_model) -> None:
    text = "The little boat went down the river, and nobody on board knew how far it was to the sea. " * 4
    prompts = [text[: 40 + 23 * i] for i in range(12)]
    with start(str(default_model), "native", max_num_batched_tokens=LONGEST, num_blocks=256) as llm:
        cold = [llm.generate([prompt], PARAMS)[0] for prompt in prompts if llm.reset_prefix_cache()]
    with start(str(default_model), "native", max_num_batched_tokens=40, num_blocks=256, num_threads=1) as llm:
        together, cached = llm.generate(prompts, PARAMS), llm.generate(prompts[::-1], PARAMS)[::-1]
    assert min(output.num_cached_tokens for output in cached) > 0
    assert [answer(output) for output in together] == [answer(output) for output in cold]
    assert [answer(output) for output in cached] == [answer(output) for output in cold]
