"""Layers whose matrices are stored in different formats are computed on the native executor."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes.plan_loop import one

from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.core.sampling_params import SamplingParams
from kvist.execution.loading import load_model_executor
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.gguf_writer import write_gguf
from kvist.weights.tensor import StoredTensor

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

PROMPT = [(7 * i * i + 3 * i) % 500 for i in range(37)]
SCORED = SamplingParams(temperature=0, prompt_logprobs=3)


def mixed_model(path, dense, quantized, dense_names):
    """`quantized` with the tensors whose names hold one of `dense_names` taken from `dense`: the same model."""
    sources = [dense, quantized]
    stored, chunks = [], {}
    for name, tensor in quantized.tensors.items():
        source = sources[not any(part in name for part in dense_names)].tensors[name]
        stored.append(StoredTensor(name, tensor.shape, source.format))
        chunks[name] = source.data
    write_gguf(path, dict(quantized.metadata), stored, lambda tensor: [chunks[tensor.name].tobytes()])
    return path


@pytest.mark.parametrize("dense_format", ["f16", "f32"])
@pytest.mark.parametrize(
    ("architecture", "dense_names"),
    [
        ("llama", ["ffn_gate"]),
        ("llama", ["ffn_up"]),
        ("llama", ["attn_q."]),
        ("qwen2", ["attn_k.", "attn_v."]),
        ("gemma3", ["blk.0.ffn_down", "token_embd"]),
        ("mixtral", ["ffn_gate_exps"]),
        ("mixtral", ["blk.1.ffn_up_exps", "ffn_down_exps"]),
    ],
)
def test_matrices_of_one_input_may_be_stored_differently(tiny_model, tmp_path, architecture, dense_names, dense_format):
    dense, quantized = (open_checkpoint(tiny_model(architecture, name)) for name in (dense_format, "q8_0"))
    checkpoint = open_checkpoint(mixed_model(tmp_path / "m.gguf", dense, quantized, dense_names))
    scores = []
    for name in ("native", "reference"):
        config = EngineConfig(cache=CacheConfig(kv_cache_dtype="float32"), executor=ExecutorConfig(executor=name))
        executor = load_model_executor(checkpoint, config, num_blocks=96)
        scores.append([score.logprob for score in one(executor, PROMPT, 1, SCORED).prompt_logprobs])
    got, wanted = map(np.array, scores)
    assert np.sqrt(np.square(got - wanted).mean()) < 0.15 * wanted.std()
