"""Mixtral: Llama's attention, then a few experts per token. (In GGUF files it is "llama" with experts.)"""

from __future__ import annotations

from typing import TypeVar

from kvist.core.errors import CheckpointError
from kvist.core.model_spec import ModelSpec, MoESpec
from kvist.models.decoder_parts import output_logits, self_attention
from kvist.models.dimensions import read_dimensions
from kvist.models.ops import Operations
from kvist.models.weight_sources import (
    ModelWeights,
    TensorNames,
    WeightSource,
    attention_weights,
    norm_weight,
    outer_weights,
)
from kvist.weights.checkpoint import Checkpoint

T = TypeVar("T")
W = TypeVar("W")

MODEL_TYPE = "mixtral"
HF_MODEL_TYPES: tuple[str, ...] = ("mixtral",)


def parse_spec(checkpoint: Checkpoint) -> ModelSpec:
    dims = read_dimensions(checkpoint)
    if dims.moe is None:
        raise CheckpointError("the checkpoint's metadata lacks the number of experts")
    return dims.to_spec(
        model_type=MODEL_TYPE,
        layers=dims.uniform_layers(sliding_window=dims.sliding_window),
        rope_interleaved=checkpoint.kind == "gguf",
    )


def moe_of(spec: ModelSpec) -> MoESpec:
    assert spec.moe is not None  # parse_spec made sure
    return spec.moe


def weight_sources(spec: ModelSpec, names: TensorNames) -> list[WeightSource]:
    num_experts = moe_of(spec).num_experts
    wide, narrow = (spec.intermediate_size, spec.hidden_size), (spec.hidden_size, spec.intermediate_size)
    sources = outer_weights(spec, names)
    for i in range(spec.num_layers):
        sources.append(norm_weight(spec, names, i, "attention_norm", "attn_norm", "input_layernorm"))
        sources += attention_weights(spec, names, i)
        sources.append(norm_weight(spec, names, i, "ffn_norm", "ffn_norm", "post_attention_layernorm"))
        router = names.inside(i, "ffn_gate_inp.weight", "block_sparse_moe.gate.weight")
        sources.append(WeightSource(name="router", layer=i, tensors=(router,), shape=(num_experts, spec.hidden_size)))
        for name, hf, shape in (("gate", "w1", wide), ("down", "w2", narrow), ("up", "w3", wide)):
            tensors = _expert_tensors(names, i, name, hf, num_experts)
            sources.append(WeightSource(name=name, layer=i, tensors=tensors, shape=(num_experts, *shape)))
    return sources


def _expert_tensors(names: TensorNames, layer: int, name: str, hf: str, num_experts: int) -> tuple[str, ...]:
    """One stacked tensor in today's GGUF files, one per expert in old ones and in Hugging Face checkpoints."""
    stacked = f"blk.{layer}.ffn_{name}_exps.weight"
    if names.is_gguf and stacked in names.present:
        return (stacked,)
    return tuple(
        names.inside(layer, f"ffn_{name}.{expert}.weight", f"block_sparse_moe.experts.{expert}.{hf}.weight")
        for expert in range(num_experts)
    )


def forward(spec: ModelSpec, ops: Operations[T, W], weights: ModelWeights[W]) -> None:
    moe = moe_of(spec)
    x = ops.embed(weights.shared["embed"], scale=spec.embedding_scale)
    for i, w in enumerate(weights.layers):
        normed = ops.rms_norm(x, w["attention_norm"], eps=spec.norm_eps)
        x = ops.add(x, self_attention(spec, ops, weights, i, normed))
        normed = ops.rms_norm(x, w["ffn_norm"], eps=spec.norm_eps)
        mixed = ops.mixture_of_experts(
            normed,
            router=w["router"],
            gate=w["gate"],
            up=w["up"],
            down=w["down"],
            num_experts_per_token=moe.num_experts_per_token,
            normalize_top_k=moe.normalize_top_k,
            kind=spec.activation,
        )
        x = ops.add(x, mixed)
    output_logits(spec, ops, weights, x)
