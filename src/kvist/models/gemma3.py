"""Gemma 3 (text): local layers between global ones, norms before and after each half, scaled embeddings."""

from __future__ import annotations

import math
from typing import TypeVar

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.core.model_spec import LayerSpec, ModelSpec
from kvist.models.decoder_parts import feed_forward, output_logits, self_attention
from kvist.models.dimensions import Dimensions, hf_rope_scaling, model_metadata, read_dimensions
from kvist.models.metadata import Metadata
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

MODEL_TYPE = "gemma3"
HF_MODEL_TYPES: tuple[str, ...] = ("gemma3", "gemma3_text")

LOCAL_ROPE_THETA = 10000.0
PATTERN = 6  # every sixth layer is global
NUM_LAYERS_OF_27B = 62  # the one size whose attention scale is not 1/sqrt(head_dim)

# The published config.json files leave out what equals these.
HF_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}


def parse_spec(checkpoint: Checkpoint) -> ModelSpec:
    dims = read_dimensions(checkpoint, hf_defaults=HF_DEFAULTS)
    fields = model_metadata(checkpoint)
    if checkpoint.kind == "gguf":
        layers = _gguf_layers(fields, dims)
        divisor = dims.hidden_size / dims.num_q_heads if dims.num_layers == NUM_LAYERS_OF_27B else dims.head_dim
        softcaps: tuple[float | None, float | None] = (None, None)
    else:
        fields = fields.over(HF_DEFAULTS)
        if fields.flag("use_bidirectional_attention", default=False):
            raise UnsupportedModelError("gemma3 models with bidirectional attention are not supported")
        layers = _hf_layers(fields, dims)
        divisor = fields.number("query_pre_attn_scalar", low=1e-3)
        softcaps = (_softcap(fields, "final_logit_softcapping"), _softcap(fields, "attn_logit_softcapping"))
    return dims.to_spec(
        model_type=MODEL_TYPE,
        layers=layers,
        activation="gelu_tanh",
        attention_scale=divisor**-0.5,
        qk_norm=True,
        embedding_scale=math.sqrt(dims.hidden_size),
        logit_softcap=softcaps[0],
        attention_softcap=softcaps[1],
    )


def _softcap(fields: Metadata, key: str) -> float | None:
    return fields.number(key, low=1e-3) if fields.has(key) else None


def _gguf_layers(fields: Metadata, dims: Dimensions) -> tuple[LayerSpec, ...]:
    key = "attention.sliding_window_pattern"  # an interval, or for each layer whether it is local
    if fields.is_list(key):
        is_global = [not is_local for is_local in fields.flags(key, dims.num_layers)]
    else:
        is_global = _every(fields.integer(key, PATTERN), dims)
    theta = fields.number("rope.freq_base_swa", LOCAL_ROPE_THETA, low=1.0)
    return _patterned(dims, _local_layer(dims, theta), is_global)


def _every(interval: int, dims: Dimensions) -> list[bool]:
    return [(i + 1) % interval == 0 for i in range(dims.num_layers)]


def _local_layer(dims: Dimensions, rope_theta: float) -> LayerSpec:
    return LayerSpec(sliding_window=dims.sliding_window, rope_theta=rope_theta, rope_scaling=None)


def _hf_layers(fields: Metadata, dims: Dimensions) -> tuple[LayerSpec, ...]:
    if fields.has("layer_types"):
        kinds = fields.texts("layer_types")
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if len(kinds) != dims.num_layers or unknown:
            raise CheckpointError(
                f"'layer_types' must name full_attention or sliding_attention {dims.num_layers} times"
            )
        is_global = [kind == "full_attention" for kind in kinds]
    else:
        is_global = _every(fields.integer("sliding_window_pattern", PATTERN), dims)
    theta = fields.number("rope_local_base_freq", LOCAL_ROPE_THETA, low=1.0)
    local = _local_layer(dims, theta)
    rope = fields.part("rope_parameters")  # newer files: one object per kind of layer
    both = (rope.part("sliding_attention"), rope.part("full_attention")) if rope else (None, None)
    if both[0] is None or both[1] is None:
        return _patterned(dims, local, is_global)
    local, full = (
        LayerSpec(
            sliding_window=window, rope_theta=part.number("rope_theta", low=1.0), rope_scaling=hf_rope_scaling(part)
        )
        for part, window in ((both[0], dims.sliding_window), (both[1], None))
    )
    return tuple(full if whole else local for whole in is_global)


def _patterned(dims: Dimensions, local: LayerSpec, is_global: list[bool]) -> tuple[LayerSpec, ...]:
    full = LayerSpec(sliding_window=None, rope_theta=dims.rope_theta, rope_scaling=dims.rope_scaling)
    return tuple(full if whole else local for whole in is_global)


def weight_sources(spec: ModelSpec, names: TensorNames) -> list[WeightSource]:
    """Norm weights: Hugging Face files store the distance from 1, GGUF files the weight itself."""
    plus_one = not names.is_gguf
    sources = outer_weights(spec, names, plus_one=plus_one)
    norms = (
        ("attention_norm", "attn_norm", "input_layernorm"),
        ("post_attention_norm", "post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffn_norm", "post_ffw_norm", "post_feedforward_layernorm"),
    )
    for i in range(spec.num_layers):
        sources += [norm_weight(spec, names, i, *spelling, plus_one=plus_one) for spelling in norms]
        sources += attention_weights(spec, names, i, plus_one=plus_one)
        sources += feed_forward_weights(spec, names, i)
    return sources


def forward(spec: ModelSpec, ops: Operations[T, W], weights: ModelWeights[W]) -> None:
    """Like Llama, with a second norm on the way out of each half."""
    x = ops.embed(weights.shared["embed"], scale=spec.embedding_scale)
    for i, w in enumerate(weights.layers):
        normed = ops.rms_norm(x, w["attention_norm"], eps=spec.norm_eps)
        attended = self_attention(spec, ops, weights, i, normed)
        x = ops.add(x, ops.rms_norm(attended, w["post_attention_norm"], eps=spec.norm_eps))
        normed = ops.rms_norm(x, w["ffn_norm"], eps=spec.norm_eps)
        x = ops.add(x, ops.rms_norm(feed_forward(spec, ops, w, normed), w["post_ffn_norm"], eps=spec.norm_eps))
    output_logits(spec, ops, weights, x)
