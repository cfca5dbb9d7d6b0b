"""The bytes of K and V, one contiguous range per block. Knows block ids and slots, not requests or prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvist.core.model_spec import ModelSpec
from kvist.core.step_plan import BlockMove, BlockMoveKind
from kvist.execution.kv_dtype import SCALE_BYTES, KVDtype, scale_and_round

Floats = NDArray[np.float32]
QUAD = 4  # int8 numbers that lie together: a multiply-add takes four at once


class KVStorage:
    """Paged KV: [block][layer][K or V][kv head], K as [head_dim][block_size] and V as [block_size][head_dim].

    Scaled numbers lie four by four, K as [head_dim / 4][block_size][4] and V as [block_size / 4][head_dim][4]; the
    scales of the slots follow. Memory is taken from the system when a block is first written, so an untouched block
    costs nothing.
    """

    def __init__(self, spec: ModelSpec, *, num_blocks: int, block_size: int, dtype: KVDtype) -> None:
        heads, head_dim = spec.num_kv_heads, spec.head_dim
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_kv_heads = heads
        self.head_dim = head_dim
        # np.empty leaves the pages to the system; zeros would be as cheap, but hide reads of unwritten slots
        shape = (num_blocks, spec.num_layers, 2, heads, block_size * dtype.vector_bytes(head_dim))
        try:
            blocks = np.empty(shape, np.uint8)
        except ValueError as error:  # NumPy's word for more than an address space holds
            raise MemoryError(f"a pool of {num_blocks} blocks is larger than any memory") from error
        self.data: NDArray[np.uint8] = blocks.reshape(-1)  # all of it, for kernels
        self._cells: Cells = (
            ScaledCells(blocks, block_size, head_dim) if dtype.is_scaled else PlainCells(blocks, block_size, dtype)
        )

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


class ScaledCells:
    """int8 with a scale per slot and head, four numbers together: see KVStorage."""

    def __init__(self, blocks: NDArray[np.uint8], block_size: int, head_dim: int) -> None:
        lead = blocks.shape[:4]
        size = block_size * head_dim
        numbers = blocks[..., :size].view(np.int8)
        keys, values = numbers[:, :, 0], numbers[:, :, 1]
        # The views split an axis that is contiguous, so they remain views.
        self._keys = keys.reshape(*lead[:2], lead[3], head_dim // QUAD, block_size, QUAD)
        self._values = values.reshape(*lead[:2], lead[3], block_size // QUAD, head_dim, QUAD)
        assert np.shares_memory(self._keys, blocks)
        self._scales = blocks[..., size : size + SCALE_BYTES * block_size].view(np.float32)

    def write(
        self, layer: int, block_ids: NDArray[np.int64], slots: NDArray[np.int64], keys: Floats, values: Floats
    ) -> None:
        (ints, key_scales), (value_ints, value_scales) = scale_and_round(keys), scale_and_round(values)
        quads = ints.reshape(*ints.shape[:2], -1, QUAD)
        self._keys[:, layer][block_ids, :, :, slots] = quads
        self._values[:, layer][block_ids, :, slots // QUAD, :, slots % QUAD] = value_ints
        self._scales[:, layer, 0][block_ids, :, slots] = key_scales
        self._scales[:, layer, 1][block_ids, :, slots] = value_scales

    def read(self, layer: int, block_ids: NDArray[np.int64]) -> tuple[Floats, Floats]:
        scales = self._scales[block_ids, layer]  # [blocks, K or V, heads, block_size]
        keys = np.swapaxes(self._keys[block_ids, layer], -1, -2)
        values = np.swapaxes(self._values[block_ids, layer], -1, -2)
        num_blocks, heads, _, _, block_size = keys.shape
        with np.errstate(over="ignore", invalid="ignore"):  # of slots that nobody has written, whatever lay there
            flat_keys = keys.reshape(num_blocks, heads, -1, block_size) * scales[:, 0, :, None]
            flat_values = values.reshape(num_blocks, heads, block_size, -1) * scales[:, 1, :, :, None]
        return flat_keys, flat_values

    def copy(self, source: int, target: int, num_slots: int) -> None:
        whole, rest = divmod(num_slots, QUAD)
        self._keys[target, ..., :num_slots, :] = self._keys[source, ..., :num_slots, :]
        self._values[target, :, :, :whole] = self._values[source, :, :, :whole]
        if rest:
            self._values[target, :, :, whole, :, :rest] = self._values[source, :, :, whole, :, :rest]
        self._scales[target, ..., :num_slots] = self._scales[source, ..., :num_slots]
