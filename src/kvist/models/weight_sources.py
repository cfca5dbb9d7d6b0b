"""Which tensors of a checkpoint make up each weight that a model uses, under one set of names for both sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.core.model_spec import ModelSpec
from kvist.weights.checkpoint import Checkpoint

W = TypeVar("W")

IGNORED_TENSORS = ("rotary_emb.inv_freq", "vision_tower.", "multi_modal_projector.")  # not of the language model


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """One weight: `name` in layer `layer` (None: outside the layers).

    tensors: the checkpoint's tensors; several are stacked along a new first axis.
    shape: of the whole weight, [out, in] for matrices. plus_one: the file stores the weight's distance from 1.
    """

    name: str
    layer: int | None
    tensors: tuple[str, ...]
    shape: tuple[int, ...]
    plus_one: bool = False


@dataclass(frozen=True, slots=True)
class ModelWeights(Generic[W]):
    """An executor's weight handles: `shared` by name, `layers[i]` by name."""

    shared: Mapping[str, W]
    layers: Sequence[Mapping[str, W]]


class TensorNames:
    """Spells tensor names as the checkpoint's source does, and tells what is there."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.is_gguf = checkpoint.kind == "gguf"
        self.present = frozenset(checkpoint.tensor_names)
        nested = any(name.startswith("language_model.model.") for name in self.present)
        self._root = "language_model." if nested else ""
        if not nested and any(name.startswith("model.language_model.") for name in self.present):
            self._trunk = "model.language_model."
        else:
            self._trunk = f"{self._root}model."

    def outside(self, gguf: str, hf: str) -> str:
        """Name of a tensor outside the layers; `hf` is relative to the model's trunk, but for lm_head."""
        if self.is_gguf:
            return gguf
        return f"{self._root}{hf}" if hf.startswith("lm_head") else f"{self._trunk}{hf}"

    def inside(self, layer: int, gguf: str, hf: str) -> str:
        return f"blk.{layer}.{gguf}" if self.is_gguf else f"{self._trunk}layers.{layer}.{hf}"


def outer_weights(spec: ModelSpec, names: TensorNames, *, plus_one: bool = False) -> list[WeightSource]:
    """Embedding table, last norm, the output matrix unless tied, and GGUF's rotary frequency divisors if any."""
    table, norm = (spec.vocab_size, spec.hidden_size), (spec.hidden_size,)
    sources = [
        _outer("embed", names.outside("token_embd.weight", "embed_tokens.weight"), table),
        _outer("final_norm", names.outside("output_norm.weight", "norm.weight"), norm, plus_one=plus_one),
    ]
    if not spec.tie_embeddings:
        sources.append(_outer("output", names.outside("output.weight", "lm_head.weight"), table))
    if "rope_freqs.weight" in names.present:
        sources.append(_outer("rope_frequency_divisors", "rope_freqs.weight", (spec.head_dim // 2,)))
    return sources


def _outer(name: str, tensor: str, shape: tuple[int, ...], *, plus_one: bool = False) -> WeightSource:
    return WeightSource(name=name, layer=None, tensors=(tensor,), shape=shape, plus_one=plus_one)


def attention_weights(spec: ModelSpec, names: TensorNames, layer: int, *, plus_one: bool = False) -> list[WeightSource]:
    """Query, key, value and output matrices, with biases and head norms as the spec says."""
    q_width, kv_width = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    sources = [
        _inner(names, layer, "q", ("attn_q.weight", "self_attn.q_proj.weight"), (q_width, spec.hidden_size)),
        _inner(names, layer, "k", ("attn_k.weight", "self_attn.k_proj.weight"), (kv_width, spec.hidden_size)),
        _inner(names, layer, "v", ("attn_v.weight", "self_attn.v_proj.weight"), (kv_width, spec.hidden_size)),
        _inner(names, layer, "o", ("attn_output.weight", "self_attn.o_proj.weight"), (spec.hidden_size, q_width)),
    ]
    if spec.qkv_bias:
        sources += [
            _inner(names, layer, "q_bias", ("attn_q.bias", "self_attn.q_proj.bias"), (q_width,)),
            _inner(names, layer, "k_bias", ("attn_k.bias", "self_attn.k_proj.bias"), (kv_width,)),
            _inner(names, layer, "v_bias", ("attn_v.bias", "self_attn.v_proj.bias"), (kv_width,)),
        ]
    if spec.qk_norm:
        head = (spec.head_dim,)
        sources += [
            _inner(names, layer, "q_norm", ("attn_q_norm.weight", "self_attn.q_norm.weight"), head, plus_one=plus_one),
            _inner(names, layer, "k_norm", ("attn_k_norm.weight", "self_attn.k_norm.weight"), head, plus_one=plus_one),
        ]
    return sources


def feed_forward_weights(spec: ModelSpec, names: TensorNames, layer: int) -> list[WeightSource]:
    wide, narrow = (spec.intermediate_size, spec.hidden_size), (spec.hidden_size, spec.intermediate_size)
    return [
        _inner(names, layer, "gate", ("ffn_gate.weight", "mlp.gate_proj.weight"), wide),
        _inner(names, layer, "up", ("ffn_up.weight", "mlp.up_proj.weight"), wide),
        _inner(names, layer, "down", ("ffn_down.weight", "mlp.down_proj.weight"), narrow),
    ]


def norm_weight(
    spec: ModelSpec, names: TensorNames, layer: int, name: str, gguf: str, hf: str, *, plus_one: bool = False
) -> WeightSource:
    """One norm over the hidden size."""
    return _inner(names, layer, name, (f"{gguf}.weight", f"{hf}.weight"), (spec.hidden_size,), plus_one=plus_one)


def _inner(
    names: TensorNames,
    layer: int,
    name: str,
    spellings: tuple[str, str],
    shape: tuple[int, ...],
    *,
    plus_one: bool = False,
) -> WeightSource:
    tensor = names.inside(layer, *spellings)
    return WeightSource(name=name, layer=layer, tensors=(tensor,), shape=shape, plus_one=plus_one)


def check_weight_sources(sources: Sequence[WeightSource], spec: ModelSpec, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for a missing or ill-shaped tensor, UnsupportedModelError for one nobody uses."""
    present = set(checkpoint.tensor_names)
    used = set()
    for source in sources:
        wanted = source.shape if len(source.tensors) == 1 else source.shape[1:]
        for tensor in source.tensors:
            if tensor not in present:
                raise CheckpointError(f"the checkpoint lacks the tensor {tensor!r}; is the file complete?")
            shape = tuple(checkpoint.tensor(tensor).shape)
            if shape != wanted:
                raise CheckpointError(f"tensor {tensor!r} has the shape {shape}; its metadata asks for {wanted}")
            used.add(tensor)
    unused = [name for name in present - used if not any(part in name for part in IGNORED_TENSORS)]
    if spec.tie_embeddings:
        unused = [name for name in unused if not name.endswith("lm_head.weight")]
    if unused:
        raise UnsupportedModelError(
            f"{len(unused)} tensors have no place in a {spec.model_type} model, so its results would be wrong: "
            + ", ".join(sorted(unused)[:4])
        )
