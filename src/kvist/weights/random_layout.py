"""Which tensors a random model has, under both their names, and how large their numbers are.

Scales keep activations near 1, let every layer matter more than the token's own embedding, and make attention sharp:
else the most likely next token of a random model is always the last one, or that of the history's average.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvist.weights.model_shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalTensor:
    """One tensor, or one of each expert. hf has "{expert}" in it if `num_experts` is given; shape is one expert's.

    kind: all but matrix and embedding are float32 in GGUF files. mean: as in GGUF files; Gemma's Hugging Face files
    hold norm weights less 1.
    """

    gguf: str
    hf: str
    shape: tuple[int, ...]
    std: float
    kind: Literal["matrix", "embedding", "vector", "norm", "router"] = "matrix"
    is_rotated: bool = False
    num_experts: int | None = None
    mean: float = 0.0


def logical_tensors(shape: ModelShape, num_layers: int, vocab_size: int) -> Iterator[LogicalTensor]:
    """Give all tensors in the order of a GGUF file."""
    hidden = shape.hidden_size
    # Gemma multiplies embeddings by sqrt(hidden_size).
    embedding_std = (1.0 if shape.is_gemma else 3.0) / hidden**0.5 if shape.tie_embeddings else 0.5
    yield LogicalTensor(
        gguf="token_embd.weight", hf="model.embed_tokens.weight", shape=(vocab_size, hidden), std=embedding_std,
        kind="embedding",
    )  # fmt: skip
    for layer in range(num_layers):
        yield from _attention(shape, f"blk.{layer}.", f"model.layers.{layer}.")
        yield from _feed_forward(shape, f"blk.{layer}.", f"model.layers.{layer}.")
    yield _norm("output_norm.weight", "model.norm.weight", hidden)
    if not shape.tie_embeddings:
        yield LogicalTensor(
            gguf="output.weight", hf="lm_head.weight", shape=(vocab_size, hidden), std=3.0 / hidden**0.5,
            kind="embedding",
        )  # fmt: skip


def _norm(gguf: str, hf: str, size: int, mean: float = 1.0) -> LogicalTensor:
    return LogicalTensor(gguf=gguf, hf=hf, shape=(size,), std=0.1, kind="norm", mean=mean)


def _attention(shape: ModelShape, gguf: str, hf: str) -> Iterator[LogicalTensor]:
    hidden = shape.hidden_size
    q_size, kv_size = shape.num_q_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield _norm(gguf + "attn_norm.weight", hf + "input_layernorm.weight", hidden)
    for name, size, gain in (("q", q_size, 2.0), ("k", kv_size, 2.0), ("v", kv_size, 1.0)):
        is_rotated = name != "v"
        yield LogicalTensor(
            gguf=f"{gguf}attn_{name}.weight", hf=f"{hf}self_attn.{name}_proj.weight", shape=(size, hidden),
            std=gain / hidden**0.5, is_rotated=is_rotated,
        )  # fmt: skip
        if shape.has_qkv_bias:
            yield LogicalTensor(
                gguf=f"{gguf}attn_{name}.bias", hf=f"{hf}self_attn.{name}_proj.bias", shape=(size,), std=0.3,
                kind="vector",
            )  # fmt: skip
        if shape.has_qk_norm and is_rotated:
            yield _norm(f"{gguf}attn_{name}_norm.weight", f"{hf}self_attn.{name}_norm.weight", shape.head_dim, mean=2.0)
    yield LogicalTensor(
        gguf=gguf + "attn_output.weight", hf=hf + "self_attn.o_proj.weight", shape=(hidden, q_size),
        std=4.0 / q_size**0.5,
    )  # fmt: skip
    if shape.is_gemma:
        yield _norm(gguf + "post_attention_norm.weight", hf + "post_attention_layernorm.weight", hidden, mean=2.0)


def _feed_forward(shape: ModelShape, gguf: str, hf: str) -> Iterator[LogicalTensor]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    norm_name = "pre_feedforward_layernorm.weight" if shape.is_gemma else "post_attention_layernorm.weight"
    yield _norm(gguf + "ffn_norm.weight", hf + norm_name, hidden)
    matrices = (("gate", "w1", (inner, hidden)), ("up", "w3", (inner, hidden)), ("down", "w2", (hidden, inner)))
    if shape.num_experts is not None:
        moe = hf + "block_sparse_moe."
        yield LogicalTensor(
            gguf=gguf + "ffn_gate_inp.weight", hf=moe + "gate.weight", shape=(shape.num_experts, hidden),
            std=1.0 / hidden**0.5, kind="router",
        )  # fmt: skip
    for name, expert_name, size in matrices:
        gain = 3.0 if name == "down" else 1.0
        if shape.num_experts is None:
            yield LogicalTensor(
                gguf=f"{gguf}ffn_{name}.weight", hf=f"{hf}mlp.{name}_proj.weight", shape=size,
                std=gain / size[1] ** 0.5,
            )  # fmt: skip
        else:
            yield LogicalTensor(
                gguf=f"{gguf}ffn_{name}_exps.weight", hf=f"{moe}experts.{{expert}}.{expert_name}.weight", shape=size,
                std=gain / size[1] ** 0.5, num_experts=shape.num_experts,
            )  # fmt: skip
    if shape.is_gemma:
        yield _norm(gguf + "post_ffw_norm.weight", hf + "post_feedforward_layernorm.weight", hidden, mean=4.0)
