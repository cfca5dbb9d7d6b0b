"""Qwen2 and Qwen2.5: Llama with biases on query, key and value."""

from __future__ import annotations

from dataclasses import replace

from kvist.core.model_spec import LayerSpec, ModelSpec
from kvist.models import llama
from kvist.models.dimensions import Dimensions, model_metadata, read_dimensions
from kvist.weights.checkpoint import Checkpoint

MODEL_TYPE = "qwen2"
HF_MODEL_TYPES: tuple[str, ...] = ("qwen2",)

weight_sources = llama.weight_sources
forward = llama.forward


def parse_spec(checkpoint: Checkpoint) -> ModelSpec:
    dims = read_dimensions(checkpoint)
    return dims.to_spec(model_type=MODEL_TYPE, layers=qwen_layers(checkpoint, dims), qkv_bias=True)


def qwen_layers(checkpoint: Checkpoint, dims: Dimensions) -> tuple[LayerSpec, ...]:
    """Full attention, but for checkpoints that switch their window on from layer `max_window_layers` upwards."""
    layers = dims.uniform_layers(sliding_window=None)
    fields = model_metadata(checkpoint)
    if checkpoint.kind == "gguf" or not fields.flag("use_sliding_window", default=False):
        return layers
    first = fields.integer("max_window_layers", 28, low=0)
    return tuple(
        replace(layer, sliding_window=dims.sliding_window) if i >= first else layer for i, layer in enumerate(layers)
    )
