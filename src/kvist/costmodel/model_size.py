"""How many parameters the parts of a model have. Norms and biases are left out: together they are far below 0.1%."""

from __future__ import annotations

from kvist.core.model_spec import ModelSpec


def attention_parameters(spec: ModelSpec) -> int:
    """Of one layer: the query, key, value and output projections."""
    return spec.hidden_size * spec.head_dim * 2 * (spec.num_q_heads + spec.num_kv_heads)


def expert_parameters(spec: ModelSpec) -> int:
    """Of one feed-forward network: the only one of a layer, or one of its experts."""
    return (3 if spec.is_ffn_gated else 2) * spec.hidden_size * spec.intermediate_size


def feed_forward_parameters(spec: ModelSpec) -> int:
    """Of one layer, all experts and the router."""
    if spec.moe is None:
        return expert_parameters(spec)
    return spec.moe.num_experts * (expert_parameters(spec) + spec.hidden_size)


def embedding_parameters(spec: ModelSpec) -> int:
    """Of the input embedding; the output has as many again unless they are tied."""
    return spec.vocab_size * spec.hidden_size


def count_parameters(spec: ModelSpec) -> int:
    """All of them, by the spec's dimensions."""
    per_layer = attention_parameters(spec) + feed_forward_parameters(spec)
    return spec.num_layers * per_layer + embedding_parameters(spec) * (1 if spec.tie_embeddings else 2)
