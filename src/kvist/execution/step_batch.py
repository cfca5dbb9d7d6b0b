"""One step's rows laid end to end, with the place of every token. Pure bookkeeping, no arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PADDING_TOKEN_ID = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + num_tokens) of one request, at rows [first_row, first_row + num_tokens) of the batch.

    block_ids: the blocks that hold positions 0 .. start + num_tokens. Empty for padding, which nobody keeps.
    """

    first_row: int
    start: int
    num_tokens: int
    block_ids: NDArray[np.int64]

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.num_tokens)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """token_ids, positions: [num_tokens], padding last. write_*: where the first `num_kept_tokens` of them go."""

    chunks: Sequence[Chunk]
    padding: Sequence[Chunk]
    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    write_block_ids: NDArray[np.int64]
    write_slots: NDArray[np.int64]

    @property
    def num_kept_tokens(self) -> int:
        return len(self.write_slots)


def build_batch(
    rows: Sequence[tuple[Sequence[int], int, Sequence[int]]], *, block_size: int, num_padding_tokens: int
) -> StepBatch:
    """Lay out `rows` of (the chunk's token ids, its first position, its request's block table), then padding."""
    chunks, first_row = [], 0
    for token_ids, start, table in rows:
        num_blocks = -(-(start + len(token_ids)) // block_size)
        assert len(table) >= num_blocks, "the plan's block table does not cover its chunk"
        blocks = np.array(table[:num_blocks], np.int64)
        chunks.append(Chunk(first_row, start, len(token_ids), blocks))
        first_row += len(token_ids)
    padding = _padding_chunks(num_padding_tokens, max(len(rows), 1), first_row)
    positions = [np.arange(chunk.start, chunk.end) for chunk in (*chunks, *padding)]
    blocks_of = [chunk.block_ids[np.arange(chunk.start, chunk.end) // block_size] for chunk in chunks]
    real_ids = [np.array(token_ids, np.int64) for token_ids, _, _ in rows]
    pad_ids = np.full(num_padding_tokens, PADDING_TOKEN_ID, np.int64)
    all_positions = np.concatenate([*positions, np.empty(0, np.int64)])
    return StepBatch(
        chunks=chunks,
        padding=padding,
        token_ids=np.concatenate([*real_ids, pad_ids]),
        positions=all_positions,
        write_block_ids=np.concatenate([*blocks_of, np.empty(0, np.int64)]),
        write_slots=all_positions[:first_row] % block_size,
    )


def _padding_chunks(num_tokens: int, num_rows: int, first_row: int) -> list[Chunk]:
    """Spread padding over as many chunks as there are rows, as a padded batch would have it."""
    nothing = np.empty(0, np.int64)
    chunks = []
    for i in range(num_rows):
        size = num_tokens // num_rows + (i < num_tokens % num_rows)
        if size:
            chunks.append(Chunk(first_row, 0, size, nothing))
            first_row += size
    return chunks
