"""Llama 1 to 3 and all that share its layout (SmolLM2, TinyLlama, ...): grouped-query attention, SwiGLU, RMS norms."""

from __future__ import annotations

from typing import TypeVar

from kvist.core.errors import UnsupportedModelError
from kvist.core.model_spec import ModelSpec
from kvist.models.decoder_parts import feed_forward, output_logits, self_attention
from kvist.models.dimensions import model_metadata, read_dimensions
from kvist.models.ops import Operations
from kvist.models.weight_sources import (
    ModelWeights,
    TensorNames,
    WeightSource,
    attention_weights,
    feed_forward_weights,
    norm_weight,
    outer_weights,
)
from kvist.weights.checkpoint import Checkpoint

T = TypeVar("T")
W = TypeVar("W")

MODEL_TYPE = "llama"
HF_MODEL_TYPES: tuple[str, ...] = ("llama",)


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


def weight_sources(spec: ModelSpec, names: TensorNames) -> list[WeightSource]:
    """The weights of `forward`, layer by layer."""
    sources = outer_weights(spec, names)
    for i in range(spec.num_layers):
        sources.append(norm_weight(spec, names, i, "attention_norm", "attn_norm", "input_layernorm"))
        sources += attention_weights(spec, names, i)
        sources.append(norm_weight(spec, names, i, "ffn_norm", "ffn_norm", "post_attention_layernorm"))
        sources += feed_forward_weights(spec, names, i)
    return sources


def forward(spec: ModelSpec, ops: Operations[T, W], weights: ModelWeights[W]) -> None:
    """x + attention(norm(x)), then x + feed_forward(norm(x)), for every layer."""
    x = ops.embed(weights.shared["embed"], scale=spec.embedding_scale)
    for i, w in enumerate(weights.layers):
        normed = ops.rms_norm(x, w["attention_norm"], eps=spec.norm_eps)
        x = ops.add(x, self_attention(spec, ops, weights, i, normed))
        normed = ops.rms_norm(x, w["ffn_norm"], eps=spec.norm_eps)
        x = ops.add(x, feed_forward(spec, ops, w, normed))
    output_logits(spec, ops, weights, x)
