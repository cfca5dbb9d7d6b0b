"""The bytes of K and V, one contiguous range per block. Knows block ids and slots, not requests or prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvist.core.model_spec import ModelSpec
from kvist.core.step_plan import BlockMove, BlockMoveKind
from kvist.execution.kv_dtype import KVDtype


class KVStorage:
    """Paged KV: [block][layer][K or V][kv head], K as [head_dim][block_size] and V as [block_size][head_dim].

    Memory is taken from the system when a block is first written, so an untouched block costs nothing.
    """

    def __init__(self, spec: ModelSpec, *, num_blocks: int, block_size: int, dtype: KVDtype) -> None:
        heads, head_dim = spec.num_kv_heads, spec.head_dim
        self._dtype = dtype
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_kv_heads = heads
        self.head_dim = head_dim
        # np.empty leaves the pages to the system; zeros would be as cheap, but hide reads of unwritten slots
        shape = (num_blocks, spec.num_layers, 2, heads * head_dim * block_size)
        try:
            blocks = np.empty(shape, dtype.numpy_dtype)
        except ValueError as error:  # NumPy's word for more than an address space holds
            raise MemoryError(f"a pool of {num_blocks} blocks is larger than any memory") from error
        self.data: NDArray[np.uint8] = blocks.reshape(-1).view(np.uint8)  # all of it, for kernels
        self._keys = blocks[:, :, 0].reshape(num_blocks, spec.num_layers, heads, head_dim, block_size)
        self._values = blocks[:, :, 1].reshape(num_blocks, spec.num_layers, heads, block_size, head_dim)

    def write(
        self,
        layer_index: int,
        block_ids: NDArray[np.int64],
        slots: NDArray[np.int64],
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
    ) -> None:
        """Round and store one token per entry: keys and values are [num_tokens, num_kv_heads, head_dim]."""
        self._keys[:, layer_index][block_ids, :, :, slots] = self._dtype.round(keys)
        self._values[:, layer_index][block_ids, :, slots] = self._dtype.round(values)

    def read(self, layer_index: int, block_ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """K as [num_kv_heads, head_dim, num_slots] and V as [num_kv_heads, num_slots, head_dim], in table order."""
        keys = self._keys[block_ids, layer_index]  # [blocks, heads, head_dim, block_size]
        values = self._values[block_ids, layer_index]
        num_blocks, heads, head_dim, block_size = keys.shape
        keys = keys.transpose(1, 2, 0, 3).reshape(heads, head_dim, num_blocks * block_size)
        values = values.transpose(1, 0, 2, 3).reshape(heads, num_blocks * block_size, head_dim)
        return self._dtype.widen(keys), self._dtype.widen(values)

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carry out block moves in order. Slots past `num_tokens` of a copy's target keep what they held."""
        for move in moves:
            assert move.kind is BlockMoveKind.COPY
            n = move.num_tokens
            self._keys[move.target, ..., :n] = self._keys[move.source, ..., :n]
            self._values[move.target, :, :, :n] = self._values[move.source, :, :, :n]
