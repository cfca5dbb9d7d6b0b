"""What the supported decoders have in common: attention, gated feed-forward, the way out. Their files combine them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from kvist.core.model_spec import ModelSpec
from kvist.models.ops import Operations
from kvist.models.weight_sources import ModelWeights

T = TypeVar("T")
W = TypeVar("W")


def self_attention(spec: ModelSpec, ops: Operations[T, W], weights: ModelWeights[W], layer_index: int, x: T) -> T:
    """Grouped-query attention with rotary positions, biases and head norms where the model has them."""
    w, layer = weights.layers[layer_index], spec.layers[layer_index]
    q = ops.linear(x, w["q"], bias=w.get("q_bias"), split="column")
    k = ops.linear(x, w["k"], bias=w.get("k_bias"), split="column")
    v = ops.linear(x, w["v"], bias=w.get("v_bias"), split="column")
    if spec.qk_norm:
        q = ops.rms_norm(q, w["q_norm"], eps=spec.norm_eps, head_dim=spec.head_dim)
        k = ops.rms_norm(k, w["k_norm"], eps=spec.norm_eps, head_dim=spec.head_dim)
    divisors = weights.shared.get("rope_frequency_divisors")
    q, k = (
        ops.rope(
            part,
            layer,
            head_dim=spec.head_dim,
            interleaved=spec.rope_interleaved,
            frequency_divisors=divisors,
        )
        for part in (q, k)
    )
    attended = ops.attention(
        q,
        k,
        v,
        layer_index=layer_index,
        layer=layer,
        scale=spec.attention_scale,
        softcap=spec.attention_softcap,
    )
    return ops.linear(attended, w["o"], split="row")


def feed_forward(spec: ModelSpec, ops: Operations[T, W], w: Mapping[str, W], x: T) -> T:
    """down(activation(gate(x)) * up(x))."""
    gate = ops.linear(x, w["gate"], split="column")
    up = ops.linear(x, w["up"], split="column")
    return ops.linear(ops.gated_activation(gate, up, kind=spec.activation), w["down"], split="row")


def output_logits(spec: ModelSpec, ops: Operations[T, W], weights: ModelWeights[W], x: T) -> None:
    """The last norm and the output matrix, which is the embedding table when they are tied."""
    x = ops.rms_norm(x, weights.shared["final_norm"], eps=spec.norm_eps)
    table = weights.shared["embed" if spec.tie_embeddings else "output"]
    ops.logits(x, table, softcap=spec.logit_softcap)
