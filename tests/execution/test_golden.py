"""Our tokens and log-probabilities against those of transformers on torch (scripts/make_golden.py)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.plan_loop import PlanLoop

from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.core.sampling_params import SamplingParams
from kvist.execution.loading import load_model_executor
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.fetch import resolve_model
from kvist.weights.random_model import HF_FORMATS, make_random_model

GOLDEN = Path(__file__).parent.parent / "golden"
TINY = sorted(path.stem for path in GOLDEN.glob("tiny-*.json"))
SHAPED = sorted(path.stem for path in GOLDEN.glob("*.*.json") if not path.stem.startswith("tiny-"))
REAL = json.loads((GOLDEN / "smollm2-135m-instruct.json").read_text())

TIE = 1e-3  # two logits nearer than this may change places between implementations
TOLERANCE = 2e-3
REFERENCE = EngineConfig(executor=ExecutorConfig(executor="reference"))


@pytest.fixture(scope="module")
def real_executor():
    path = resolve_model("smollm2-135m-instruct")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == REAL["weights_sha256"]
    return load_model_executor(open_checkpoint(path), REFERENCE, num_blocks=128)


def assert_matches(executor, case) -> None:
    """Feed prompt and golden continuation as one prompt: every position is compared, whatever ties came before."""
    prompt, expected = case["prompt_token_ids"], case["token_ids"]
    loop = PlanLoop(executor)
    sampling = SamplingParams(temperature=0, prompt_logprobs=2)
    loop.add("golden", prompt + expected, sampling)
    loop.step({"golden": len(prompt) + len(expected)})
    scores = loop.requests["golden"].prompt_logprobs
    scored_prompt, scored_output = scores[: len(prompt) - 1], scores[len(prompt) - 1 :]
    for i, score in enumerate(scored_output):
        assert score.token_id == expected[i]
        assert score.rank == 1 or case["margins"][i] <= TIE, f"token {i} is {score.top_token_ids[0]}, not {expected[i]}"
    np.testing.assert_allclose([score.logprob for score in scored_output], case["logprobs"], atol=TOLERANCE, rtol=0)
    if "prompt_logprobs" in case:
        got = [score.logprob for score in scored_prompt]
        np.testing.assert_allclose(got, case["prompt_logprobs"], atol=TOLERANCE, rtol=0)


def assert_generates(executor, case, num_tokens: int) -> None:
    """Decode step by step, up to the first tie."""
    loop = PlanLoop(executor, shuffle_seed=1)
    loop.add("golden", case["prompt_token_ids"], SamplingParams(temperature=0))
    loop.generate(num_tokens, chunk=48)
    ties = [i for i, margin in enumerate(case["margins"][:num_tokens]) if margin <= TIE]
    until = ties[0] if ties else num_tokens
    assert loop.requests["golden"].output[:until] == case["token_ids"][:until]


def check_random_model(name, folder) -> None:
    """Make the model again from its seed and compare every case."""
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    path = folder / ("model" if golden["format"] in HF_FORMATS else "model.gguf")
    make_random_model(golden["like"], golden["format"], path, layers=golden["layers"], seed=golden["seed"])
    executor = load_model_executor(open_checkpoint(path), REFERENCE, num_blocks=64)
    for case in golden["cases"]:
        assert_matches(executor, case)
        assert_generates(executor, case, len(case["token_ids"]))


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_match_transformers(name, tmp_path):
    check_random_model(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPED)
def test_models_of_real_widths_match_transformers(name, tmp_path):
    check_random_model(name, tmp_path)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("case", REAL["cases"], ids=lambda case: case["name"])
def test_the_default_model_matches_transformers(real_executor, case):
    assert_matches(real_executor, case)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("case", REAL["cases"][::4], ids=lambda case: case["name"])
def test_the_default_model_generates_what_transformers_generates(real_executor, case):
    assert_generates(real_executor, case, 16)
