"""Speculation from outside: the same answers, however drafts are made, and a clear word when they cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvist import LLM, RequestOutput, SamplingParams
from kvist.core.errors import ConfigError

PROMPTS = ["one two three one two three one two", "a b c", "one two three one"]
OPTIONS = {"max_num_batched_tokens": 128, "num_blocks": 128, "max_model_len": 512, "check_invariants": True}


def answers(llm: LLM, sampling: SamplingParams) -> list[tuple[str, list[int], str | None]]:
    outputs: list[RequestOutput] = llm.generate(PROMPTS, sampling)
    return [(sample.text, sample.token_ids, sample.finish_reason) for output in outputs for sample in output.outputs]


def counted(llm: LLM, name: str) -> float:
    return next(metric.value for metric in llm.get_metrics() if metric.name == f"kvist:spec_decode_num_{name}_total")


@pytest.mark.parametrize("how", ["ngram", "model"])
def test_answers_are_the_same_with_drafts(tiny_model: Any, how: str) -> None:
    model = str(tiny_model("llama", "q8_0"))
    config: dict[str, Any] = {"method": "ngram", "prompt_lookup_min": 1}
    if how == "model":
        config = {"model": str(tiny_model("llama", "f32"))}
    samplings = [
        SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True),
        SamplingParams(temperature=0.8, seed=7, n=2, max_tokens=40, stop=["e"], logprobs=2),
    ]
    with LLM(model, **OPTIONS) as plain:
        expected = [answers(plain, sampling) for sampling in samplings]
        assert counted(plain, "draft_tokens") == 0
    with LLM(model, **OPTIONS, speculative_config={**config, "adaptive": False}) as drafting:
        assert [answers(drafting, sampling) for sampling in samplings] == expected
        assert counted(drafting, "draft_tokens") > 0
        if how == "model":
            assert counted(drafting, "accepted_tokens") > 0.5 * counted(drafting, "draft_tokens")


def test_a_draft_model_with_another_vocabulary_is_refused(tiny_model: Any, tmp_path: Path) -> None:
    model = tiny_model("llama", "hf")
    other = Path(shutil.copytree(model, tmp_path / "other"))
    file = other / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [token for token in vocabulary if len(token) == 1][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ConfigError, match="another vocabulary: its token"):
        LLM(str(model), **OPTIONS, speculative_model=str(other))
