"""Repacks a checkpoint's tensors into the native kernels' layouts: the same integers and scales in another order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvist.execution.native import _native
from kvist.models.weight_sources import ModelWeights
from kvist.weights.tensor import Tensor

TILE = 16
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


# Experts are one matrix each; vectors (norms, biases, divisors) are plain float32.
Weight = Matrix | tuple[Matrix, ...] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Packing:
    """How one 2-D tensor is to be laid out. order: source row of each output; None: as they stand."""

    tensor: Tensor
    order: NDArray[np.int32] | None
    format: str
    width: int
    num_bytes: int

    @property
    def is_quantized(self) -> bool:
        return self.format in QUANTIZED_FORMATS

    @property
    def is_as_stored(self) -> bool:
        """Whether the file's own bytes serve, without a copy."""
        return self.format == self.tensor.format.name and self.format in DENSE_FORMATS and self.order is None

    def pieces(self, packed: NDArray[np.uint8], max_bytes: int) -> Iterator[tuple[Packing, NDArray[np.uint8]]]:
        """Cut it into runs of rows of about `max_bytes`, each with its part of `packed`: they fill it together."""
        num_outputs = self.tensor.shape[0]
        num_tiles = -(-num_outputs // TILE)
        if self.order is not None or num_outputs % TILE:
            yield self, packed
            return
        tile_bytes, stored_bytes = self.num_bytes // num_tiles, len(self.tensor.data) // num_tiles
        step = max(1, max_bytes // tile_bytes)
        for first in range(0, num_tiles, step):
            end = min(first + step, num_tiles)
            shape = ((end - first) * TILE, self.tensor.shape[1])
            data = self.tensor.data[first * stored_bytes : end * stored_bytes]
            part = packed[first * tile_bytes : end * tile_bytes]
            yield replace(self, tensor=replace(self.tensor, shape=shape, data=data), num_bytes=len(part)), part

    def matrix(self, values: NDArray[np.uint8]) -> Matrix:
        return Matrix(self.format, self.tensor.shape[0], self.width, values)

    def write(self, packed: NDArray[np.uint8]) -> None:
        """Fill `packed`, which has `num_bytes` bytes."""
        num_outputs, width = self.tensor.shape
        if self.format in QUANTIZED_FORMATS:
            order = NO_INTS if self.order is None else self.order
            _native.pack(FORMATS[self.format], self.tensor.data, num_outputs, width, order, packed)
            return
        rows = packed.reshape(num_outputs, -1)
        if self.format == self.tensor.format.name:
            stored = self.tensor.data.reshape(num_outputs, -1)
            rows[:] = stored if self.order is None else stored[self.order]
        else:
            floats = self.tensor.dequantize()
            rows.view(np.float32)[:, :width] = floats if self.order is None else floats[self.order]
            rows.view(np.float32)[:, width:] = 0.0


def packing_of(tensor: Tensor, order: NDArray[np.int32] | None) -> Packing:
    """Choose the layout of a 2-D tensor. What is in a format or of a width that the kernels lack is widened."""
    num_outputs, width = tensor.shape
    kind = tensor.format.name
    if kind in QUANTIZED_FORMATS:
        num_bytes = _native.packed_bytes(FORMATS[kind], num_outputs, width)
        if num_bytes:
            return Packing(tensor, order, kind, width, num_bytes)
    if kind in DENSE_FORMATS and width % TILE == 0:
        return Packing(tensor, order, kind, width, len(tensor.data))
    return widened(tensor, order)


def widened(tensor: Tensor, order: NDArray[np.int32] | None) -> Packing:
    """The layout that takes every 2-D tensor: float32, rows padded to a tile."""
    num_outputs, width = tensor.shape
    padded = -(-width // TILE) * TILE
    return Packing(tensor, order, "F32", padded, num_outputs * padded * 4)


def pack_matrix(tensor: Tensor, order: NDArray[np.int32] | None) -> Matrix:
    """Pack one tensor into memory of its own, or leave it where it is if its bytes serve as they are."""
    packing = packing_of(tensor, order)
    if packing.is_as_stored:
        return packing.matrix(tensor.data)
    packed = np.empty(packing.num_bytes, np.uint8)
    packing.write(packed)
    return packing.matrix(packed)


def num_bytes(weights: ModelWeights[Weight]) -> int:
    """Bytes of all weights as the kernels read them."""
    total = 0
    for home in (weights.shared, *weights.layers):
        for weight in home.values():
            parts = weight if isinstance(weight, tuple) else (weight,)
            total += sum(part.values.nbytes if isinstance(part, Matrix) else part.nbytes for part in parts)
    return total
