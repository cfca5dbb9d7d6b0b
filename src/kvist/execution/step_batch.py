"""One step's rows laid end to end, with the place of every token. Pure bookkeeping, no arithmetic."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

PADDING_TOKEN_ID = 0


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Tokens [start, start + num_tokens) of one request, at rows [first_row, first_row + num_tokens) of the batch.

    block_ids: its request's block table, which covers positions 0 .. start + num_tokens. Empty for padding.
    """

    first_row: int
    start: int
    num_tokens: int
    block_ids: array[int]

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.num_tokens)


@dataclass(frozen=True)
class StepBatch:
    """token_ids: of all chunks, then of the padding. What one executor alone needs is worked out when it asks."""

    chunks: Sequence[Chunk]
    padding: Sequence[Chunk]
    token_ids: array[int]
    block_size: int

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_kept_tokens(self) -> int:
        """All but padding."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """[num_tokens]"""
        return np.concatenate([np.arange(chunk.start, chunk.end) for chunk in (*self.chunks, *self.padding)])

    @cached_property
    def write_block_ids(self) -> NDArray[np.int64]:
        """[num_kept_tokens], the block that each token's K and V go to."""
        blocks_of = [
            np.array(chunk.block_ids, np.int64)[np.arange(chunk.start, chunk.end) // self.block_size]
            for chunk in self.chunks
        ]
        return np.concatenate([*blocks_of, np.empty(0, np.int64)])

    @cached_property
    def write_slots(self) -> NDArray[np.int64]:
        """[num_kept_tokens], the slot in that block."""
        slots: NDArray[np.int64] = self.positions[: self.num_kept_tokens] % self.block_size
        return slots


def build_batch(
    rows: Sequence[tuple[Sequence[int], int, array[int]]], *, block_size: int, num_padding_tokens: int
) -> StepBatch:
    """Lay out `rows` of (the chunk's token ids, its first position, its request's block table), then padding."""
    chunks = []
    all_token_ids = array("i")
    for token_ids, start, table in rows:
        num_tokens = len(token_ids)
        assert len(table) * block_size >= start + num_tokens, "the plan's block table does not cover its chunk"
        chunks.append(Chunk(len(all_token_ids), start, num_tokens, table))
        all_token_ids.extend(token_ids)
    padding = _padding_chunks(num_padding_tokens, max(len(rows), 1), len(all_token_ids)) if num_padding_tokens else []
    all_token_ids.extend([PADDING_TOKEN_ID] * num_padding_tokens)
    return StepBatch(chunks, padding, all_token_ids, block_size)


def _padding_chunks(num_tokens: int, num_rows: int, first_row: int) -> list[Chunk]:
    """Spread padding over as many chunks as there are rows, as a padded batch would have it."""
    nothing = array("i")
    chunks = []
    for i in range(num_rows):
        size = num_tokens // num_rows + (i < num_tokens % num_rows)
        if size:
            chunks.append(Chunk(first_row, 0, size, nothing))
            first_row += size
    return chunks
