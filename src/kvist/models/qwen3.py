"""Qwen3 (dense): no biases, but an RMS norm within each query and key head, and a head size of its own."""

from __future__ import annotations

from kvist.core.errors import UnsupportedModelError
from kvist.core.model_spec import ModelSpec
from kvist.models import llama
from kvist.models.dimensions import model_metadata, read_dimensions
from kvist.models.qwen2 import qwen_layers
from kvist.weights.checkpoint import Checkpoint

MODEL_TYPE = "qwen3"
HF_MODEL_TYPES: tuple[str, ...] = ("qwen3",)

weight_sources = llama.weight_sources
forward = llama.forward


def parse_spec(checkpoint: Checkpoint) -> ModelSpec:
    if checkpoint.kind == "hf" and model_metadata(checkpoint).flag("attention_bias", default=False):
        raise UnsupportedModelError("qwen3 models with attention_bias are not supported")
    dims = read_dimensions(checkpoint, hf_defaults={"head_dim": 128})
    return dims.to_spec(model_type=MODEL_TYPE, layers=qwen_layers(checkpoint, dims), qk_norm=True)
