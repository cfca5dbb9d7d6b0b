"""The shape of a model: all that memory tables, planners and schedulers need, without any weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched. `factor` in both kinds; the rest for "llama3" only."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """Mixture of experts: `num_experts` in each layer, of which a token uses `num_experts_per_token`."""

    num_experts: int
    num_experts_per_token: int
    normalize_top_k: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Attributes of one layer's attention. sliding_window None: sees everything before it."""

    sliding_window: int | None
    rope_theta: float
    rope_scaling: RopeScaling | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers whose KV lives in the same blocks. One group holding all layers, at first."""

    layer_indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Dimensions of a decoder-only transformer, as parsed from a checkpoint by models/<model_type>.py."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    tie_embeddings: bool
    attention_scale: float
    activation: Literal["silu", "gelu_tanh"]
    qkv_bias: bool = False
    qk_norm: bool = False
    is_ffn_gated: bool = True  # three matrices in the feed-forward part; two as in OPT, where no file here computes it
    rope_interleaved: bool = False  # rotary pairs are (2i, 2i+1), as GGUF llama files store q and k
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    attention_softcap: float | None = None
    moe: MoESpec | None = None
    weight_bytes: int | None = None  # as stored; None when unknown
    num_parameters: int | None = None

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return (KVGroup(layer_indices=tuple(range(self.num_layers))),)

    def kv_bytes_per_token(self, kv_element_bytes: float) -> float:
        """Bytes of K and V that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * kv_element_bytes
