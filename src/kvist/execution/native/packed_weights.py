"""Repacks a checkpoint's weights into the native kernels' layouts: the same integers and scales in another order."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvist.core.model_spec import ModelSpec
from kvist.execution.native import _native
from kvist.models.registry import Model
from kvist.models.weight_sources import ModelWeights, WeightSource
from kvist.weights.checkpoint import Checkpoint
from kvist.weights.tensor import Tensor

TILE = 16
DROP_EVERY_BYTES = 32 << 20  # of the files' pages kept beside the packed weights while loading
QUANTIZED_FORMATS = ("Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0")
DENSE_FORMATS = ("F32", "F16", "BF16")
FORMATS = {name: number for number, name in enumerate((*QUANTIZED_FORMATS, *DENSE_FORMATS))}  # as in csrc/packed.h
KV_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3}  # as in csrc/kernels.h
NO_INTS = np.empty(0, np.int32)
NO_FLOATS = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear's weight or an embedding table: [num_outputs, width], packed or dense.

    values: the packed bytes, or the rows as they are stored.
    """

    format: str
    num_outputs: int
    width: int
    values: NDArray[np.uint8]

    @property
    def is_quantized(self) -> bool:
        return self.format in QUANTIZED_FORMATS

    @property
    def padded_outputs(self) -> int:
        return -(-self.num_outputs // TILE) * TILE

    def native(self, bias: NDArray[np.float32] | None = None) -> _native.Weight:
        padded = NO_FLOATS if bias is None else np.pad(bias, (0, self.padded_outputs - len(bias)))
        return _native.weight(self.values, FORMATS[self.format], self.num_outputs, self.width, padded)


Progress = Callable[[int, int], None]  # stored bytes done, stored bytes in all

# Experts are one matrix each; vectors (norms, biases, divisors) are plain float32.
Weight = Matrix | tuple[Matrix, ...] | NDArray[np.float32]


def load_packed_weights(
    checkpoint: Checkpoint, model: Model, progress: Progress | None = None, *, num_threads: int = 1
) -> ModelWeights[Weight]:
    """Pack all weights of `model`; `progress` is called with stored bytes done and in all."""
    sizes = [sum(len(checkpoint.tensor(name).data) for name in source.tensors) for source in model.sources]
    shared: dict[str, Weight] = {}
    layers: list[dict[str, Weight]] = [{} for _ in range(model.spec.num_layers)]
    done = dropped = 0
    with ThreadPoolExecutor(num_threads, "packing") as threads:  # packing releases the interpreter lock
        weights = threads.map(lambda source: _load(checkpoint, source, model.spec), model.sources)
        for source, size, weight in zip(model.sources, sizes, weights, strict=True):
            home = shared if source.layer is None else layers[source.layer]
            home[source.name] = weight
            done += size
            if done - dropped >= DROP_EVERY_BYTES or done == sum(sizes):
                dropped = done
                _drop_read_pages(checkpoint)
            if progress is not None:
                progress(done, sum(sizes))
    return ModelWeights(shared, layers)


def _drop_read_pages(checkpoint: Checkpoint) -> None:
    """Let go of the mapped files' pages: what is packed is not read again, and dense weights are read in anew."""
    files: dict[int, mmap.mmap] = {}
    for tensor in checkpoint.tensors.values():
        owner: Any = tensor.data  # Any: what a chain of views ends in
        while isinstance(owner, np.ndarray):
            owner = owner.base
        owner = owner.obj if isinstance(owner, memoryview) else owner
        if isinstance(owner, mmap.mmap):
            files[id(owner)] = owner
    for file in files.values():
        file.madvise(mmap.MADV_DONTNEED)


def num_bytes(weights: ModelWeights[Weight]) -> int:
    """Bytes of all weights as the kernels read them."""
    total = 0
    for home in (weights.shared, *weights.layers):
        for weight in home.values():
            parts = weight if isinstance(weight, tuple) else (weight,)
            total += sum(part.values.nbytes if isinstance(part, Matrix) else part.nbytes for part in parts)
    return total


def _load(checkpoint: Checkpoint, source: WeightSource, spec: ModelSpec) -> Weight:
    order = _row_order(source, spec)
    if len(source.shape) == 1:
        vector = checkpoint.tensor(source.tensors[0]).dequantize().astype(np.float32)
        vector = vector + np.float32(1) if source.plus_one else vector
        return vector if order is None else vector[order]
    if len(source.shape) == 3:
        slices = [part for name in source.tensors for part in experts_of(checkpoint.tensor(name))]
        return tuple(pack_matrix(part, None) for part in slices)
    return pack_matrix(checkpoint.tensor(source.tensors[0]), order)


def experts_of(tensor: Tensor) -> list[Tensor]:
    """A stacked tensor's experts, each a view; a matrix is one expert."""
    if len(tensor.shape) == 2:
        return [tensor]
    pieces = tensor.data.reshape(tensor.shape[0], -1)
    return [replace(tensor, shape=tensor.shape[1:], data=piece) for piece in pieces]


def _row_order(source: WeightSource, spec: ModelSpec) -> NDArray[np.int32] | None:
    """Rows of q and k that turn interleaved rotary pairs (2i, 2i+1) into halves (i, i + head_dim/2)."""
    if not spec.rope_interleaved or source.name not in ("q", "k", "q_bias", "k_bias"):
        return None
    head = np.concatenate([np.arange(0, spec.head_dim, 2), np.arange(1, spec.head_dim, 2)])
    starts = np.arange(0, source.shape[0], spec.head_dim)
    order: NDArray[np.int32] = (starts[:, None] + head).reshape(-1).astype(np.int32)
    return order


def layout_of(tensor: Tensor) -> tuple[str, int, int]:
    """Format, width and bytes of the tensor as a Matrix. What the kernels lack is widened to float32."""
    num_outputs, width = tensor.shape
    kind = tensor.format.name
    if kind in QUANTIZED_FORMATS and (size := _native.packed_bytes(FORMATS[kind], num_outputs, width)):
        return kind, width, size
    if kind in DENSE_FORMATS and width % TILE == 0:
        return kind, width, len(tensor.data)
    padded = width + -width % TILE
    return "F32", padded, 4 * num_outputs * padded


def pack_matrix(tensor: Tensor, order: NDArray[np.int32] | None) -> Matrix:
    """Pack one tensor, its rows in `order`."""
    num_outputs, width = tensor.shape
    kind, packed_width, size = layout_of(tensor)
    if kind in QUANTIZED_FORMATS:
        packed = np.empty(size, np.uint8)
        _native.pack(FORMATS[kind], tensor.data, num_outputs, width, NO_INTS if order is None else order, packed)
        return Matrix(kind, num_outputs, width, packed)
    if kind == tensor.format.name and packed_width == width:
        return Matrix(kind, num_outputs, width, _flat(tensor.data.reshape(num_outputs, -1), order))
    floats = np.pad(tensor.dequantize(), ((0, 0), (0, packed_width - width)))
    return Matrix(kind, num_outputs, packed_width, _flat(np.ascontiguousarray(floats).view(np.uint8), order))


def _flat(rows: NDArray[np.uint8], order: Sequence[int] | NDArray[np.int32] | None) -> NDArray[np.uint8]:
    return np.ascontiguousarray(rows if order is None else rows[order]).reshape(-1)
