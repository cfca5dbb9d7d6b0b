"""Llama 1 to 3 and all that share its layout (SmolLM2, TinyLlama, ...): grouped-query attention, SwiGLU, RMS norms."""

from __future__ import annotations

from kvist.core.errors import UnsupportedModelError
from kvist.core.model_spec import ModelSpec
from kvist.models.dimensions import model_metadata, read_dimensions
from kvist.models.llama_block import llama_forward, llama_weight_sources
from kvist.weights.checkpoint import Checkpoint

MODEL_TYPE = "llama"
HF_MODEL_TYPES: tuple[str, ...] = ("llama",)

weight_sources = llama_weight_sources
forward = llama_forward


def parse_spec(checkpoint: Checkpoint) -> ModelSpec:
    """Read the spec. GGUF files keep q and k permuted for interleaved rotary pairs."""
    dims = read_dimensions(checkpoint)
    is_gguf = checkpoint.kind == "gguf"
    if not is_gguf:
        for key in ("attention_bias", "mlp_bias"):
            if model_metadata(checkpoint).flag(key, default=False):
                raise UnsupportedModelError(f"llama models with {key} are not supported")
    window = dims.sliding_window if is_gguf else None  # Mistral files go by the name of llama in GGUF
    return dims.to_spec(
        model_type=MODEL_TYPE, layers=dims.uniform_layers(sliding_window=window), rope_interleaved=is_gguf
    )
