"""Baselines compute the same as what they are compared with: otherwise the comparison means nothing."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import TinyModel

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.bench.step_timer import StepTimer
from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import ExecutorConfig
from kvist.config.model_config import ModelConfig
from kvist.execution.native import _native
from kvist.repro.attention_pair import (
    Heads,
    NaiveAttention,
    TiledAttention,
    Tokens,
    bytes_of_scores_moved,
    exact_attention,
)
from kvist.repro.kernels import load_executors
from kvist.repro.setting import ReproSetting
from kvist.runtime.real_clock import RealClock

SHAPES = [
    (Heads(9, 3, 64), 1, 1),
    (Heads(9, 3, 64), 65, 65),
    (Heads(4, 4, 80), 131, 7),
    (Heads(6, 1, 16), 200, 1),
    (Heads(2, 2, 128), 50, 50),
]
FLOAT_ISAS = [isa for isa in _native.isas() if not isa.startswith("amx")]


@pytest.mark.parametrize("isa", FLOAT_ISAS)
@pytest.mark.parametrize(("heads", "num_tokens", "num_queries"), SHAPES)
def test_both_attentions_are_exact_to_rounding(heads: Heads, num_tokens: int, num_queries: int, isa: str) -> None:
    tokens = Tokens.random(heads, num_tokens=num_tokens, num_queries=num_queries)
    pool = _native.ThreadPool(2)
    naive = NaiveAttention(heads, isa=isa, pool=pool, clock=RealClock(), num_tokens=num_tokens, num_queries=num_queries)
    naive.fill(tokens)
    tiled = TiledAttention(heads, isa=isa, dtype="float32", pool=pool, num_tokens=num_tokens, num_queries=num_queries)
    tiled.fill(tokens)
    exact = exact_attention(tokens, heads)
    np.testing.assert_allclose(naive.run(tokens)[0], exact, atol=1e-5)
    np.testing.assert_allclose(tiled.run(num_queries)[0], exact, atol=1e-5)


@pytest.mark.parametrize("isa", [isa for isa in _native.isas() if isa == "amx"] + ["amx_plain"])
@pytest.mark.parametrize(
    ("heads", "num_tokens", "num_queries"),
    [*SHAPES[:2], SHAPES[4], (Heads(4, 2, 96), 131, 7), (Heads(6, 1, 32), 200, 1)],
)
def test_both_attentions_on_the_matrix_unit_are_exact_to_the_rounding_of_bfloat16(
    heads: Heads, num_tokens: int, num_queries: int, isa: str
) -> None:
    tokens = Tokens.random(heads, num_tokens=num_tokens, num_queries=num_queries)
    pool = _native.ThreadPool(2)
    naive = NaiveAttention(heads, isa=isa, pool=pool, clock=RealClock(), num_tokens=num_tokens, num_queries=num_queries)
    naive.fill(tokens)
    tiled = TiledAttention(heads, isa=isa, dtype="bfloat16", pool=pool, num_tokens=num_tokens, num_queries=num_queries)
    tiled.fill(tokens)
    exact = exact_attention(tokens, heads)
    np.testing.assert_allclose(naive.run(tokens)[0], exact, atol=0.03)
    np.testing.assert_allclose(tiled.run(num_queries)[0], exact, atol=0.03)


def test_arrays_that_are_too_short_are_refused() -> None:
    heads = Heads(2, 2, 16)
    tokens = Tokens.random(heads, num_tokens=40, num_queries=40)
    naive = NaiveAttention(
        heads, isa="portable", pool=_native.ThreadPool(1), clock=RealClock(), num_tokens=20, num_queries=20
    )
    with pytest.raises(ValueError, match="too short"):
        naive.fill(tokens)


def test_scores_moved_are_counted_for_the_pairs_that_are_seen() -> None:
    heads = Heads(2, 1, 16)
    assert bytes_of_scores_moved(heads, num_tokens=3, num_queries=3, weight_bytes=4) == 7 * 4 * 2 * (1 + 2 + 3)
    assert bytes_of_scores_moved(heads, num_tokens=10, num_queries=1, weight_bytes=2) == (5 * 4 + 2 * 2) * 2 * 10


@pytest.mark.parametrize(
    ("architecture", "weight_format"), [("llama", "q4_k_m"), ("llama", "hf"), ("qwen3", "q8_0"), ("gemma3", "q8_0")]
)
def test_plans_without_fusion_and_sent_one_by_one_give_the_same_tokens(
    architecture: str, weight_format: str, tiny_model: TinyModel
) -> None:
    setting = ReproSetting(
        model_path=tiny_model(architecture, weight_format),
        model=ModelConfig(),
        cache=CacheConfig(),
        executor=ExecutorConfig(num_threads=1),
        is_quick=True,
        scale=1.0,
        repeats=1,
        say=lambda text: None,
    )
    sampled = []
    nums_operations = []
    for executor in load_executors(setting).values():
        nums_operations.append(executor._runner._body.num_operations)
        timer = StepTimer(executor, RealClock(), block_size=16)
        sampled.append([timer.sampled([(size, 0)]) for size in (1, 7, 64, 100)])
        executor.close()
    fused, apart, eager, eager_apart = nums_operations
    assert fused == eager
    assert apart == eager_apart > fused
    assert all(each == sampled[0] for each in sampled)
