"""Attention of a chunk against a loop over queries, heads and keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.core.model_spec import LayerSpec, RopeScaling
from kvist.execution.reference import attention
from kvist.execution.reference.attention import attend
from kvist.execution.rope_frequencies import rope_frequencies

HEAD_DIM = 4


def naive(query, keys, values, *, first_query, first_key, window, scale, softcap):
    num_queries, num_q_heads, _ = query.shape
    group = num_q_heads // len(keys)
    out = np.zeros((num_queries, num_q_heads, HEAD_DIM))
    for i in range(num_queries):
        for head in range(num_q_heads):
            weights = {}
            for j in range(keys.shape[2]):
                distance = first_query + i - (first_key + j)
                if distance >= 0 and (window is None or distance < window):
                    score = scale * float(query[i, head] @ keys[head // group][:, j])
                    weights[j] = math.exp(softcap * math.tanh(score / softcap) if softcap else score)
            for j, weight in weights.items():
                out[i, head] += weight / sum(weights.values()) * values[head // group][j]
    return out.reshape(num_queries, -1)


@settings(max_examples=60, deadline=None)
@given(
    num_queries=st.integers(1, 6),
    num_before=st.integers(0, 9),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    window=st.sampled_from([None, 1, 3, 20]),
    softcap=st.sampled_from([None, 2.0]),
    max_scores=st.sampled_from([1, 40, 1 << 20]),
)
def test_attention_matches_a_plain_loop(num_queries, num_before, heads, window, softcap, max_scores):
    random = np.random.default_rng(num_queries * 100 + num_before)
    num_keys = num_queries + num_before
    query = random.standard_normal((num_queries, heads[0], HEAD_DIM), np.float32)
    keys = random.standard_normal((heads[1], HEAD_DIM, num_keys), np.float32)
    values = random.standard_normal((heads[1], num_keys, HEAD_DIM), np.float32)
    options = {"first_query": 32 + num_before, "first_key": 32, "window": window, "scale": 0.7, "softcap": softcap}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "MAX_SCORES", max_scores)  # how many queries run at once changes nothing
        got = attend(query, keys, values, **options)
    np.testing.assert_allclose(got, naive(query, keys, values, **options), atol=2e-6, rtol=1e-5)


def layer(scaling=None, theta=10_000.0):
    return LayerSpec(sliding_window=None, rope_theta=theta, rope_scaling=scaling)


def test_plain_rope_frequencies_fall_from_one_by_the_theta():
    np.testing.assert_allclose(rope_frequencies(layer(), 8), [1, 0.1, 0.01, 0.001], rtol=1e-6)


def test_linear_scaling_slows_all_frequencies_alike():
    slowed = rope_frequencies(layer(RopeScaling(kind="linear", factor=4.0)), 8)
    np.testing.assert_allclose(slowed, rope_frequencies(layer(), 8) / 4, rtol=1e-6)


def test_llama3_scaling_slows_long_waves_only():
    scaling = RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64
    )
    ratio = rope_frequencies(layer(), 32) / rope_frequencies(layer(scaling), 32)
    assert ratio[0] == 1.0  # many waves in 64 positions
    assert ratio[-1] == pytest.approx(8.0)
    assert np.all(np.diff(ratio) >= 0)


def test_divisors_of_the_file_take_the_place_of_a_scaling():
    divisors = np.array([1, 2, 4, 8], np.float32)
    np.testing.assert_allclose(rope_frequencies(layer(), 8, divisors), [1, 0.05, 0.0025, 0.000125], rtol=1e-6)
