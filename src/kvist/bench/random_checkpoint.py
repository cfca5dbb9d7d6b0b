"""A checkpoint of random bits in the shape of a well-known model: as fast to compute with as the real one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvist.execution.native.self_test import random_matrix
from kvist.weights.checkpoint import Checkpoint
from kvist.weights.random_model import describe_random_gguf
from kvist.weights.tensor import StoredTensor, Tensor

ENOUGH_BYTES = 512 << 20  # of layers: more would time the same kernels again


def random_checkpoint(
    like: str, weight_format: str, num_layers: int | None, *, num_kv_heads: int | None = None
) -> Checkpoint:
    """Raises ConfigError for a shape or format that there is not. num_layers None: as many as it has, within reason.

    num_kv_heads: another number of them than the shape has.
    """
    metadata, stored = describe_random_gguf(like, weight_format, num_layers)
    if num_layers is None:
        layers = {name.split(".")[1] for name in (tensor.name for tensor in stored) if name.startswith("blk.")}
        per_layer = sum(tensor.num_bytes for tensor in stored if tensor.name.startswith("blk.")) // len(layers)
        metadata, stored = describe_random_gguf(like, weight_format, min(len(layers), 1 + ENOUGH_BYTES // per_layer))
    if num_kv_heads is not None:
        metadata, stored = _with_kv_heads(metadata, stored, num_kv_heads)
    tensors = {tensor.name: _random_tensor(tensor, seed) for seed, tensor in enumerate(stored)}
    return Checkpoint(path=Path(f"random {like}"), kind="gguf", metadata=metadata, tensors=tensors, identity="random")


def _random_tensor(stored: StoredTensor, seed: int) -> Tensor:
    bits = random_matrix(stored.format.name, math.prod(stored.shape[:-1]), stored.shape[-1], seed)
    return Tensor(name=stored.name, shape=stored.shape, format=stored.format, data=bits.data)


def _with_kv_heads(
    metadata: dict[str, Any], stored: Sequence[StoredTensor], num_kv_heads: int
) -> tuple[dict[str, Any], list[StoredTensor]]:
    """Any: metadata as GGUF holds it."""
    key = next(key for key in metadata if key.endswith(".attention.head_count_kv"))
    old = metadata[key]
    changed = []
    for tensor in stored:
        shape = tensor.shape
        if ".attn_k." in tensor.name or ".attn_v." in tensor.name:
            shape = (shape[0] // old * num_kv_heads, *shape[1:])
        changed.append(StoredTensor(tensor.name, shape, tensor.format))
    return {**metadata, key: num_kv_heads}, changed
