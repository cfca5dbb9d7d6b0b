"""The bytes of K and V, one contiguous range per block. Knows block ids and slots, not requests or prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvist.core.model_spec import ModelSpec
from kvist.core.step_plan import BlockMove, BlockMoveKind
from kvist.execution.kv_dtype import SCALE_BYTES, KVDtype, Stored, scale_and_round
from kvist.execution.preallocation import Preallocation

Floats = NDArray[np.float32]
PAIR = 2  # bfloat16 numbers that lie together: a matrix unit multiplies two at once
PAGE_BYTES = 4096
QUAD = 4  # int8 numbers that lie together: a multiply-add takes four at once


class KVStorage:
    """Paged KV: [block][layer][K or V][kv head], K as [head_dim][block_size] and V as [block_size][head_dim].

    bfloat16 numbers lie two by two, K as [head_dim / 2][block_size][2] and V as [block_size / 2][head_dim][2], scaled
    ones likewise four by four, and the scales of the slots follow. Memory is taken from the system when a block is
    first written, so an untouched block costs nothing.
    """

    def __init__(self, spec: ModelSpec, *, num_blocks: int, block_size: int, dtype: KVDtype) -> None:
        heads, head_dim = spec.num_kv_heads, spec.head_dim
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_kv_heads = heads
        self.head_dim = head_dim
        # Zeros would be as cheap, but hide reads of unwritten slots.
        shape = (num_blocks, spec.num_layers, 2, heads, block_size * dtype.vector_bytes(head_dim))
        try:
            blocks = _aligned_bytes(shape)
        except ValueError as error:  # NumPy's word for more than an address space holds
            raise MemoryError(f"a pool of {num_blocks} blocks is larger than any memory") from error
        self.data: NDArray[np.uint8] = blocks.reshape(-1)  # all of it, for kernels
        self._preallocation: Preallocation | None = None
        self._cells: Cells
        if dtype.is_scaled:
            self._cells = ScaledCells(blocks, block_size, head_dim)
        elif dtype.is_paired:
            self._cells = PairedCells(blocks, block_size, head_dim, dtype)
        else:
            self._cells = PlainCells(blocks, block_size, dtype)

    def preallocate(self, num_blocks: int) -> None:
        """Begin to take the memory of the first `num_blocks` blocks, in the background. Once at most.

        Raises ConfigError if it is not to be had.
        """
        self._preallocation = Preallocation(self.data[: self.data.nbytes // self.num_blocks * num_blocks])

    def close(self) -> None:
        """End what goes on in the background."""
        if self._preallocation is not None:
            self._preallocation.close()

    def write(
        self, layer_index: int, block_ids: NDArray[np.int64], slots: NDArray[np.int64], keys: Floats, values: Floats
    ) -> None:
        """Round and store one token per entry: keys and values are [num_tokens, num_kv_heads, head_dim]."""
        self._cells.write(layer_index, block_ids, slots, keys, values)

    def read(self, layer_index: int, block_ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """K as [num_kv_heads, head_dim, num_slots] and V as [num_kv_heads, num_slots, head_dim], in table order."""
        keys, values = self._cells.read(layer_index, block_ids)
        num_blocks, heads, head_dim, block_size = keys.shape
        keys = keys.transpose(1, 2, 0, 3).reshape(heads, head_dim, num_blocks * block_size)
        return keys, values.transpose(1, 0, 2, 3).reshape(heads, num_blocks * block_size, head_dim)

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carry out block moves in order. Slots past `num_tokens` of a copy's target keep what they held."""
        for move in moves:
            assert move.kind is BlockMoveKind.COPY
            self._cells.copy(move.source, move.target, move.num_tokens)


def _aligned_bytes(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """As np.empty, which leaves the pages to the system until they are written; begins a page.

    What kernels load at once then lies in one cache line.
    """
    num_bytes = math.prod(shape)
    raw = np.empty(num_bytes + PAGE_BYTES, np.uint8)
    begin = -raw.ctypes.data % PAGE_BYTES
    return raw[begin : begin + num_bytes].reshape(shape)


class Cells(Protocol):
    """How numbers lie in a block, in all blocks of a pool."""

    def write(
        self, layer: int, block_ids: NDArray[np.int64], slots: NDArray[np.int64], keys: Floats, values: Floats
    ) -> None: ...

    def read(self, layer: int, block_ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """K as [blocks, heads, head_dim, block_size] and V as [blocks, heads, block_size, head_dim]."""

    def copy(self, source: int, target: int, num_slots: int) -> None:
        """The first slots of a block, in all layers."""


class PlainCells:
    """Numbers of 2 or 4 bytes. blocks: bytes [block, layer, K or V, head, ...]."""

    def __init__(self, blocks: NDArray[np.uint8], block_size: int, dtype: KVDtype) -> None:
        self._dtype = dtype
        numbers = blocks.view(dtype.numpy_dtype)
        lead = (*blocks.shape[:2], blocks.shape[3])
        self._keys = numbers[:, :, 0].reshape(*lead, -1, block_size)
        self._values = numbers[:, :, 1].reshape(*lead, block_size, -1)

    def write(
        self, layer: int, block_ids: NDArray[np.int64], slots: NDArray[np.int64], keys: Floats, values: Floats
    ) -> None:
        self._keys[:, layer][block_ids, :, :, slots] = self._dtype.round(keys)
        self._values[:, layer][block_ids, :, slots] = self._dtype.round(values)

    def read(self, layer: int, block_ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        return self._dtype.widen(self._keys[block_ids, layer]), self._dtype.widen(self._values[block_ids, layer])

    def copy(self, source: int, target: int, num_slots: int) -> None:
        self._keys[target, ..., :num_slots] = self._keys[source, ..., :num_slots]
        self._values[target, :, :, :num_slots] = self._values[source, :, :, :num_slots]


class Together:
    """Numbers that lie `count` by `count`: K as [..., head_dim / count, block_size, count], V likewise along the slots.

    numbers: a view of the pool as [block, layer, K or V, head, block_size * head_dim].
    """

    def __init__(self, numbers: NDArray[Any], count: int, block_size: int, head_dim: int) -> None:
        lead = (*numbers.shape[:2], numbers.shape[3])
        self._count = count
        # The views split an axis that is contiguous, so they remain views.
        self._keys = numbers[:, :, 0].reshape(*lead, head_dim // count, block_size, count)
        self._values = numbers[:, :, 1].reshape(*lead, block_size // count, head_dim, count)
        assert np.shares_memory(self._keys, numbers)

    def write(
        self, layer: int, block_ids: NDArray[np.int64], slots: NDArray[np.int64], keys: Stored, values: Stored
    ) -> None:
        count = self._count
        self._keys[:, layer][block_ids, :, :, slots] = keys.reshape(*keys.shape[:2], -1, count)
        self._values[:, layer][block_ids, :, slots // count, :, slots % count] = values

    def read(self, layer: int, block_ids: NDArray[np.int64]) -> tuple[Stored, Stored]:
        keys = np.swapaxes(self._keys[block_ids, layer], -1, -2)
        values = np.swapaxes(self._values[block_ids, layer], -1, -2)
        num_blocks, heads, _, _, block_size = keys.shape
        return keys.reshape(num_blocks, heads, -1, block_size), values.reshape(num_blocks, heads, block_size, -1)

    def copy(self, source: int, target: int, num_slots: int) -> None:
        whole, rest = divmod(num_slots, self._count)
        self._keys[target, ..., :num_slots, :] = self._keys[source, ..., :num_slots, :]
        self._values[target, :, :, :whole] = self._values[source, :, :, :whole]
        if rest:
            self._values[target, :, :, whole, :, :rest] = self._values[source, :, :, whole, :, :rest]


class PairedCells(Together):
    """bfloat16, two numbers together: see KVStorage."""

    def __init__(self, blocks: NDArray[np.uint8], block_size: int, head_dim: int, dtype: KVDtype) -> None:
        super().__init__(blocks.view(dtype.numpy_dtype), PAIR, block_size, head_dim)
        self._dtype = dtype

    def write(
        self, layer: int, block_ids: NDArray[np.int64], slots: NDArray[np.int64], keys: Floats, values: Floats
    ) -> None:
        super().write(layer, block_ids, slots, self._dtype.round(keys), self._dtype.round(values))

    def read(self, layer: int, block_ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        keys, values = super().read(layer, block_ids)
        return self._dtype.widen(keys), self._dtype.widen(values)


class ScaledCells(Together):
    """int8 with a scale per slot and head, four numbers together: see KVStorage."""

    def __init__(self, blocks: NDArray[np.uint8], block_size: int, head_dim: int) -> None:
        size = block_size * head_dim
        super().__init__(blocks[..., :size].view(np.int8), QUAD, block_size, head_dim)
        self._scales = blocks[..., size : size + SCALE_BYTES * block_size].view(np.float32)

    def write(
        self, layer: int, block_ids: NDArray[np.int64], slots: NDArray[np.int64], keys: Floats, values: Floats
    ) -> None:
        (ints, key_scales), (value_ints, value_scales) = scale_and_round(keys), scale_and_round(values)
        super().write(layer, block_ids, slots, ints, value_ints)
        self._scales[:, layer, 0][block_ids, :, slots] = key_scales
        self._scales[:, layer, 1][block_ids, :, slots] = value_scales

    def read(self, layer: int, block_ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        scales = self._scales[block_ids, layer]  # [blocks, K or V, heads, block_size]
        keys, values = super().read(layer, block_ids)
        with np.errstate(over="ignore", invalid="ignore"):  # of slots that nobody has written, whatever lay there
            return keys * scales[:, 0, :, None], values * scales[:, 1, :, :, None]

    def copy(self, source: int, target: int, num_slots: int) -> None:
        super().copy(source, target, num_slots)
        self._scales[target, ..., :num_slots] = self._scales[source, ..., :num_slots]
