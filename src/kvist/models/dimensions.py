"""The dimensions that all supported models have in common, read from GGUF metadata or from config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.core.model_spec import LayerSpec, ModelSpec, MoESpec, RopeScaling
from kvist.models.metadata import Metadata
from kvist.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """What `read_dimensions` found. A model file turns it into a ModelSpec with its own attributes."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    sliding_window: int | None
    tie_embeddings: bool
    moe: MoESpec | None
    weight_bytes: int

    def uniform_layers(self, *, sliding_window: int | None) -> tuple[LayerSpec, ...]:
        """All layers alike."""
        layer = LayerSpec(sliding_window=sliding_window, rope_theta=self.rope_theta, rope_scaling=self.rope_scaling)
        return (layer,) * self.num_layers

    def to_spec(  # noqa: PLR0913 - one keyword per attribute that models differ in
        self,
        *,
        model_type: str,
        layers: tuple[LayerSpec, ...],
        activation: Literal["silu", "gelu_tanh"] = "silu",
        attention_scale: float | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        rope_interleaved: bool = False,
        embedding_scale: float = 1.0,
        logit_softcap: float | None = None,
        attention_softcap: float | None = None,
    ) -> ModelSpec:
        """A ModelSpec of these dimensions; `attention_scale` None is 1/sqrt(head_dim)."""
        return ModelSpec(
            model_type=model_type,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_layers,
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_position=self.max_position,
            norm_eps=self.norm_eps,
            layers=layers,
            tie_embeddings=self.tie_embeddings,
            attention_scale=1.0 / math.sqrt(self.head_dim) if attention_scale is None else attention_scale,
            activation=activation,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            rope_interleaved=rope_interleaved,
            embedding_scale=embedding_scale,
            logit_softcap=logit_softcap,
            attention_softcap=attention_softcap,
            moe=self.moe,
            weight_bytes=self.weight_bytes,
        )


def model_metadata(checkpoint: Checkpoint) -> Metadata:
    """The part of the metadata that describes the language model, without the architecture's prefix."""
    if checkpoint.kind == "gguf":
        architecture = Metadata(checkpoint.metadata).text("general.architecture")
        return Metadata(checkpoint.metadata, prefix=architecture + ".")
    config = Metadata(checkpoint.metadata)
    return config.part("text_config") or config  # multimodal checkpoints nest the language model's config


def read_dimensions(checkpoint: Checkpoint, *, hf_defaults: Mapping[str, Any] | None = None) -> Dimensions:
    """Read and check the common dimensions; `hf_defaults` are what the architecture's config.json may leave out.

    Raises CheckpointError for absent, ill-typed or inconsistent values, UnsupportedModelError for rope kinds.
    """
    if checkpoint.kind == "gguf":
        dims = _read_gguf(checkpoint, model_metadata(checkpoint))
    else:
        dims = _read_hf(checkpoint, model_metadata(checkpoint).over(hf_defaults or {}))
    if dims.num_q_heads % dims.num_kv_heads:
        raise CheckpointError(f"{dims.num_q_heads} query heads cannot share {dims.num_kv_heads} key/value heads evenly")
    if dims.head_dim % 2:
        raise CheckpointError(f"head size {dims.head_dim} is odd; rotary embedding needs pairs")
    if dims.moe and dims.moe.num_experts_per_token > dims.moe.num_experts:
        raise CheckpointError(f"{dims.moe.num_experts_per_token} of {dims.moe.num_experts} experts cannot be used")
    return dims


def _head_dim(hidden_size: int, num_q_heads: int) -> int | None:
    return None if hidden_size % num_q_heads else hidden_size // num_q_heads


def _window(fields: Metadata, key: str) -> int | None:
    return fields.integer(key, low=0) or None if fields.has(key) else None


def _read_gguf(checkpoint: Checkpoint, fields: Metadata) -> Dimensions:
    names = set(checkpoint.tensor_names)
    if "token_embd.weight" not in names:
        raise CheckpointError("the checkpoint lacks the tensor 'token_embd.weight'; is the file complete?")
    hidden_size = fields.integer("embedding_length")
    num_q_heads = fields.integer("attention.head_count", high=1 << 16)
    head_dim = fields.integer("attention.key_length", _head_dim(hidden_size, num_q_heads), high=1 << 14)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise UnsupportedModelError(f"{key} {fields.integer(key)} differs from the key head size {head_dim}")
    moe = None
    if fields.has("expert_count") and fields.integer("expert_count", low=0) > 0:
        moe = MoESpec(
            num_experts=fields.integer("expert_count", high=4096),
            num_experts_per_token=fields.integer("expert_used_count", high=4096),
        )
    return Dimensions(
        vocab_size=checkpoint.tensor("token_embd.weight").shape[0],
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count", high=1 << 12),
        num_q_heads=num_q_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_q_heads, high=1 << 16),
        head_dim=head_dim,
        max_position=fields.integer("context_length", high=1 << 30),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon", high=1.0),
        rope_theta=fields.number("rope.freq_base", 10000.0, low=1.0),
        rope_scaling=_gguf_rope_scaling(fields),
        sliding_window=_window(fields, "attention.sliding_window"),
        tie_embeddings="output.weight" not in names,
        moe=moe,
        weight_bytes=checkpoint.weight_bytes,
    )


def _gguf_rope_scaling(fields: Metadata) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise UnsupportedModelError(f"rope scaling {kind!r} is not supported in GGUF files; none and linear are")
    return RopeScaling(kind="linear", factor=fields.number("rope.scaling.factor", low=1e-3, high=1e6))


def _read_hf(checkpoint: Checkpoint, fields: Metadata) -> Dimensions:
    hidden_size = fields.integer("hidden_size")
    num_q_heads = fields.integer("num_attention_heads", high=1 << 16)
    rope = fields.part("rope_parameters") or Metadata({})  # where newer files keep theta and scaling together
    moe = None
    if fields.has("num_local_experts"):
        moe = MoESpec(
            num_experts=fields.integer("num_local_experts", high=4096),
            num_experts_per_token=fields.integer("num_experts_per_tok", high=4096),
        )
    return Dimensions(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers", high=1 << 12),
        num_q_heads=num_q_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_q_heads, high=1 << 16),
        head_dim=fields.integer("head_dim", _head_dim(hidden_size, num_q_heads), high=1 << 14),
        max_position=fields.integer("max_position_embeddings", high=1 << 30),
        norm_eps=fields.number("rms_norm_eps", high=1.0),
        rope_theta=rope.number("rope_theta", fields.number("rope_theta", 10000.0, low=1.0), low=1.0),
        rope_scaling=hf_rope_scaling(fields.part("rope_scaling") or rope),
        sliding_window=_window(fields, "sliding_window"),
        tie_embeddings=fields.flag("tie_word_embeddings", default="lm_head.weight" not in checkpoint.tensor_names),
        moe=moe,
        weight_bytes=checkpoint.weight_bytes,
    )


def hf_rope_scaling(fields: Metadata) -> RopeScaling | None:
    """The scaling that a `rope_scaling` or `rope_parameters` object asks for."""
    kind = fields.text("rope_type", fields.text("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=fields.number("factor", low=1e-3, high=1e6))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=fields.number("factor", low=1e-3, high=1e6),
            low_freq_factor=fields.number("low_freq_factor", low=1e-3, high=1e6),
            high_freq_factor=fields.number("high_freq_factor", low=1e-3, high=1e6),
            original_max_position=fields.integer("original_max_position_embeddings"),
        )
    raise UnsupportedModelError(f"rope scaling {kind!r} is not supported; default, linear and llama3 are")
