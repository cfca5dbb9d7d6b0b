"""The engine draws tokens with the probabilities that its options define.

They are computed here once more, plainly, from the logits that the model gives; counts are compared by chi-square.
Seeds are fixed: the tests are certain.
"""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvist import LLM, SamplingParams
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.execution.loading import load_model_executor
from kvist.execution.step_batch import build_batch
from kvist.weights.checkpoint import open_checkpoint

PROMPT = [(13 * i * i + 5 * i) % 400 + 20 for i in range(24)]
SAMPLES_PER_REQUEST, NUM_REQUESTS = 128, 16
LEAST_EXPECTED = 6  # of a cell; rarer tokens are counted together
Z = 5.0  # one in three million
FIRST: list[dict[str, Any]] = [
    {"min_p": 0.05, "top_k": 30, "top_p": 0.95, "temperature": 1.3},
    {"repetition_penalty": 0.7, "top_p": 0.9},
    {},
    {"temperature": 0.4},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_k": 40, "temperature": 1.5},
    {"top_p": 0.6},
    {"top_p": 0.9, "temperature": 0.7},
    {"min_p": 0.2},
    {"repetition_penalty": 1.6},
]
LATER: list[dict[str, Any]] = [
    {"presence_penalty": -0.5, "repetition_penalty": 1.3},
    {},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -1.2},
]


def on_both(cases: list[dict[str, Any]], num_on_reference: int) -> list[Any]:
    """All on the native executor; the sampler is the same on the reference, which is slow: a few there."""
    pairs = [("native", case) for case in cases] + [("reference", case) for case in cases[:num_on_reference]]
    return [pytest.param(executor, case, id=f"{executor} {case}") for executor, case in pairs]


@pytest.fixture(scope="module")
def executor(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(tiny_model: Any) -> str:
    return str(tiny_model("qwen3", "q8_0"))


@pytest.fixture(scope="module")
def llm(model: str, executor: str):
    options = {"max_num_seqs": 128, "max_num_batched_tokens": 256, "num_blocks": 1024, "max_model_len": 256}
    with LLM(model, executor=executor, num_threads=1, **options) as llm:
        yield llm


@pytest.fixture(scope="module")
def logits_after(model: str, executor: str):
    config = EngineConfig(executor=ExecutorConfig(executor=executor, num_threads=1))
    runner = load_model_executor(open_checkpoint(Path(model)), config, num_blocks=8)._runner

    def compute(token_ids: list[int]) -> np.ndarray:
        rows: list[np.ndarray] = []
        batch = build_batch([(token_ids, 0, array("i", range(8)))], block_size=16, num_padding_tokens=0)
        last = np.array([len(token_ids) - 1], np.int64)
        runner.run(batch, last, lambda _, logits: rows.append(np.array(logits[0].values, np.float64)))
        return rows[0]

    return compute


def distribution(logits: np.ndarray, output: list[int], params: SamplingParams) -> np.ndarray:
    """What SamplingParams says, token by token."""
    scores = list(logits)
    if params.allowed_token_ids is not None:
        scores = [score if i in params.allowed_token_ids else -np.inf for i, score in enumerate(scores)]
    for i in {*PROMPT, *output}:
        scores[i] = scores[i] / params.repetition_penalty if scores[i] > 0 else scores[i] * params.repetition_penalty
    for i, count in Counter(output).items():
        scores[i] -= params.presence_penalty + params.frequency_penalty * count
    scores = [score / params.temperature for score in scores]
    probabilities = np.exp(scores - np.max(scores))
    order = sorted(range(len(scores)), key=lambda i: (-probabilities[i], i))
    if params.top_k:
        order = order[: params.top_k]
    kept, reached, whole = [], 0.0, sum(probabilities[i] for i in order)
    for i in order:
        if reached >= params.top_p * whole:
            break
        kept.append(i)
        reached += probabilities[i]
    kept = [i for i in kept if probabilities[i] >= params.min_p * probabilities[order[0]]]
    result = np.zeros(len(scores))
    result[kept] = probabilities[kept] / probabilities[kept].sum()
    return result


def assert_drawn_from(counts: Counter[int], probabilities: np.ndarray) -> None:
    total = sum(counts.values())
    assert all(probabilities[i] > 0 for i in counts), "a token was drawn that cannot be"
    expected = total * probabilities
    large = [i for i in range(len(expected)) if expected[i] >= LEAST_EXPECTED]
    cells = [(counts[i], expected[i]) for i in large]
    rest = total - sum(counts[i] for i in large), total - sum(expected[i] for i in large)
    if rest[1] >= LEAST_EXPECTED:
        cells.append(rest)
    if len(cells) < 2:
        return
    statistic, freedom = sum((got - want) ** 2 / want for got, want in cells), len(cells) - 1
    # Wilson and Hilferty: the cube root of a chi-square over its freedom is close to normal.
    spread = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5 < Z


def draw(llm: LLM, num_tokens: int, **options: Any) -> tuple[SamplingParams, list[list[int]]]:
    params = [
        SamplingParams(n=SAMPLES_PER_REQUEST, max_tokens=num_tokens, ignore_eos=True, seed=seed, **options)
        for seed in range(NUM_REQUESTS)
    ]
    outputs = llm.generate([PROMPT] * NUM_REQUESTS, params)
    return params[0], [list(sample.token_ids) for output in outputs for sample in output.outputs]


@pytest.mark.parametrize(("executor", "options"), on_both(FIRST, 2), indirect=["executor"])
def test_first_tokens_have_the_probabilities_of_their_options(llm, logits_after, options) -> None:
    params, drawn = draw(llm, 1, **options)
    counts = Counter(tokens[0] for tokens in drawn)
    assert_drawn_from(counts, distribution(logits_after(PROMPT), [], params))


@pytest.mark.parametrize(("executor", "options"), on_both(LATER, 1), indirect=["executor"])
def test_later_tokens_have_the_probabilities_of_what_came_before(llm, logits_after, options) -> None:
    allowed = tuple(np.argsort(-logits_after(PROMPT))[:5].tolist())
    params, drawn = draw(llm, 3, allowed_token_ids=allowed, temperature=1.5, **options)
    after: dict[tuple[int, ...], Counter[int]] = {}
    for tokens in drawn:
        for i in range(3):
            after.setdefault(tuple(tokens[:i]), Counter())[tokens[i]] += 1
    for before, counts in after.items():
        if sum(counts.values()) >= 10 * LEAST_EXPECTED:
            assert_drawn_from(counts, distribution(logits_after([*PROMPT, *before]), list(before), params))


@pytest.mark.parametrize("executor", ["native"], indirect=True)
def test_the_measure_finds_a_wrong_temperature(llm, logits_after) -> None:
    _, drawn = draw(llm, 1, temperature=1.0)
    counts = Counter(tokens[0] for tokens in drawn)
    wrong = SamplingParams(temperature=1.3)
    with pytest.raises(AssertionError):
        assert_drawn_from(counts, distribution(logits_after(PROMPT), [], wrong))
