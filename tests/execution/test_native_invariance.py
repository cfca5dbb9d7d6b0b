"""A grid: on every instruction set and in every circumstance a request's log-probabilities are the same bits.

What they must be is computed once per model by the twins in plain C++, with the request alone and in one chunk.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fakes.plan_loop import PlanLoop, SequenceState, one

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.core.sampling_params import SamplingParams
from kvist.execution.kv_dtype import kv_dtype
from kvist.execution.model_executor import ModelExecutor
from kvist.execution.native import _native
from kvist.execution.native.load_weights import load_packed_weights
from kvist.execution.native.runner import NativeRunner
from kvist.execution.sampler import Sampler
from kvist.models.registry import read_model
from kvist.weights.checkpoint import open_checkpoint

# Two layers each; all kernels of linears, experts and KV formats take part.
MODELS = (
    ("llama", "q4_k_m", "float16"),
    ("llama", "q4_1", "bfloat16"),
    ("qwen3", "q8_0", "bfloat16"),  # heads that the matrix unit takes
    ("gemma3", "q8_0", "bfloat16"),
    ("llama", "q8_0", "int8"),
    ("mistral", "q8_0", "float32"),
    ("qwen3", "q6_k", "float16"),
    ("mixtral", "q5_0", "float16"),
    ("qwen2", "f32", "float32"),
    ("qwen3", "hf", "float16"),
)
PROMPT = [(7 * i * i + 3 * i) % 500 for i in range(53)]  # longer than three blocks and two windows
NUM_TOKENS = 5
MAX_TOKENS = 256


def alone_in_chunks_of(chunk: int) -> Callable[[ModelExecutor], SequenceState]:
    return lambda executor: one(executor, PROMPT, NUM_TOKENS, chunk=chunk, shuffle_seed=3)


def scored(executor: ModelExecutor) -> SequenceState:
    """With the logits of all rows of the prompt wanted: none is left out of the last layer."""
    return one(executor, PROMPT, NUM_TOKENS, SamplingParams(temperature=0, logprobs=5, prompt_logprobs=1), chunk=33)


def among(num_requests: int) -> Callable[[ModelExecutor], SequenceState]:
    """The last of so many requests, which differ in length and share steps with it in chunks."""

    def run(executor: ModelExecutor) -> SequenceState:
        loop = PlanLoop(executor, shuffle_seed=1)
        for i in range(num_requests - 1):
            loop.add(f"other{i}", PROMPT[i % 7 : i % 7 + 1 + i % 31])
        loop.add("one", PROMPT)
        loop.generate(NUM_TOKENS, chunk=MAX_TOKENS // num_requests)
        return loop.requests["one"]

    return run


def from_the_cache(num_shared: int) -> Callable[[ModelExecutor], SequenceState]:
    def run(executor: ModelExecutor) -> SequenceState:
        loop = PlanLoop(executor, shuffle_seed=2)
        loop.add("donor", [*PROMPT[:num_shared], *range(40)])
        loop.generate(2)
        loop.add("one", PROMPT)
        loop.share_prefix("donor", "one", num_shared)
        assert loop.requests["one"].num_computed == num_shared > 0
        loop.generate(NUM_TOKENS)
        return loop.requests["one"]

    return run


def preempted(after: int) -> Callable[[ModelExecutor], SequenceState]:
    def run(executor: ModelExecutor) -> SequenceState:
        loop = PlanLoop(executor, shuffle_seed=4)
        loop.add("other", PROMPT[:20])
        loop.add("one", PROMPT)
        loop.generate(after)
        loop.preempt("one")
        loop.generate(NUM_TOKENS, chunk=13)
        return loop.requests["one"]

    return run


CIRCUMSTANCES: dict[str, Callable[[ModelExecutor], SequenceState]] = {
    "alone": alone_in_chunks_of(MAX_TOKENS),
    "prompt scored": scored,
    **{f"chunks of {size}": alone_in_chunks_of(size) for size in (1, 7, 16, 33)},
    **{f"one of {count}": among(count) for count in (2, 5, 17, 64, 128)},
    **{f"{count} tokens from the cache": from_the_cache(count) for count in (1, 32, 45)},
    **{f"preempted after {count}": preempted(count) for count in (1, 3)},
}


@pytest.fixture(scope="module")
def make(tiny_model):
    """An executor on the kernels `isa`; weights are packed once for a model."""
    packed = {}

    def make(model, isa: str, num_threads: int) -> ModelExecutor:
        architecture, weight_format, dtype = model
        if model not in packed:
            checkpoint = open_checkpoint(tiny_model(architecture, weight_format))
            packed[model] = read_model(checkpoint), load_packed_weights(checkpoint, read_model(checkpoint))
        runner = NativeRunner(
            *packed[model],
            num_blocks=1024,
            block_size=16,
            dtype=kv_dtype(dtype, "native"),
            max_num_tokens=MAX_TOKENS,
            max_num_rows=128,
            num_threads=num_threads,
            isa=isa,
        )
        return ModelExecutor(runner, Sampler(processed_logprobs=False), engine_seed=0)

    return make


@pytest.fixture(scope="module")
def wanted(make):
    known: dict[tuple[tuple[str, str, str], str], SequenceState] = {}

    def compute(model, twin: str) -> SequenceState:
        if (model, twin) not in known:
            executor = make(model, twin, 1)
            known[model, twin] = one(executor, PROMPT, NUM_TOKENS)
            executor.close()
        return known[model, twin]

    return compute


@pytest.mark.parametrize(
    ("isa", "num_threads"), [*((isa, 2) for isa in _native.isas()), (_native.isas()[0], 1), (_native.isas()[0], 4)]
)
@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_a_request_gets_the_same_bits_in_all_circumstances(make, wanted, model, isa, num_threads) -> None:
    executor, expected = make(model, isa, num_threads), wanted(model, _native.plain_twin(isa))
    for name, run in CIRCUMSTANCES.items():
        got = run(executor)
        assert got.output == expected.output, name
        assert got.logprobs == expected.logprobs, name
    executor.close()
