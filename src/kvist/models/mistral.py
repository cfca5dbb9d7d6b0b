"""Mistral 7B and its like: Llama with, in the first release, a sliding window. (In GGUF files they are "llama".)"""

from __future__ import annotations

from kvist.core.model_spec import ModelSpec
from kvist.models import llama
from kvist.models.dimensions import read_dimensions
from kvist.weights.checkpoint import Checkpoint

MODEL_TYPE = "mistral"
HF_MODEL_TYPES: tuple[str, ...] = ("mistral",)

weight_sources = llama.weight_sources
forward = llama.forward


def parse_spec(checkpoint: Checkpoint) -> ModelSpec:
    dims = read_dimensions(checkpoint)
    return dims.to_spec(model_type=MODEL_TYPE, layers=dims.uniform_layers(sliding_window=dims.sliding_window))
