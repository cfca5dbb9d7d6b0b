"""Seeded random weights, encoded in any format, a chunk at a time. The same seed and key give the same numbers.

Small matrices are normal numbers, quantized. Large ones are drawn, unit by unit, from a pool of units quantized
once: a model of 7 billion weights takes seconds instead of minutes and never lies in memory as a whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvist.quantization.dequantize import dequantize
from kvist.quantization.formats import BF16, WeightFormat
from kvist.quantization.quantize import quantize
from kvist.weights.tensor import Chunk

Bytes = NDArray[np.uint8]

_EXACT_ELEMENTS = 1 << 22
_POOL_ELEMENTS = 1 << 20
_CHUNK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomMatrix:
    """[rows, columns] of normal numbers. key: what seeds it.

    rounding: to what the coarsest unquantized format can hold, so that it is the same in every file; steps of 1/32
    stay exact when the mean is added. interleaved_head_dim: write the rows of each head so that its two halves
    alternate, as GGUF files do for rope.
    """

    key: str
    rows: int
    columns: int
    std: float
    mean: float = 0.0
    rounding: Literal["none", "bf16", "32nds"] = "none"
    interleaved_head_dim: int | None = None


class RandomWeights:
    """Encodes random matrices. Holds one pool per format and scale."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._pools: dict[tuple[str, float, int], Bytes] = {}

    def encode(self, matrix: RandomMatrix, weight_format: WeightFormat) -> Iterator[Chunk]:
        """Give the stored bytes of `matrix` in order. Its rows must fill whole blocks."""
        generator = self._generator(matrix.key)
        if matrix.rows * matrix.columns <= _EXACT_ELEMENTS:
            rows = self._exact(matrix, weight_format, generator)
            yield _reorder(rows, matrix.interleaved_head_dim).reshape(-1).data
            return
        unit = 256 if matrix.columns % 256 == 0 else 32
        pool = self._pool(weight_format, matrix.std, unit)
        rows_per_chunk = max(1, _CHUNK_BYTES // weight_format.num_bytes(matrix.columns))
        rows_per_chunk += -rows_per_chunk % (matrix.interleaved_head_dim or 1)
        for start in range(0, matrix.rows, rows_per_chunk):
            num_rows = min(rows_per_chunk, matrix.rows - start)
            picks = generator.integers(0, len(pool), size=(num_rows, matrix.columns // unit), dtype=np.int32)
            yield _reorder(pool[picks].reshape(num_rows, -1), matrix.interleaved_head_dim).reshape(-1).data

    def _generator(self, key: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(key.encode())])

    def _exact(self, matrix: RandomMatrix, weight_format: WeightFormat, generator: np.random.Generator) -> Bytes:
        values = generator.standard_normal((matrix.rows, matrix.columns), dtype=np.float32)
        values *= np.float32(matrix.std)
        if matrix.rounding == "32nds":
            values = (np.rint(values * 32) / 32).astype(np.float32)
        elif matrix.rounding == "bf16":
            values = dequantize(quantize(values, BF16), BF16).reshape(values.shape)
        values += np.float32(matrix.mean)
        return quantize(values, weight_format).reshape(matrix.rows, -1)

    def _pool(self, weight_format: WeightFormat, std: float, unit: int) -> Bytes:
        key = (weight_format.name, std, unit)
        if key not in self._pools:
            values = self._generator("pool").standard_normal(_POOL_ELEMENTS, dtype=np.float32)
            encoded = quantize(values * np.float32(std), weight_format)
            self._pools[key] = encoded.reshape(_POOL_ELEMENTS // unit, -1)
        return self._pools[key]


def _reorder(rows: Bytes, interleaved_head_dim: int | None) -> Bytes:
    if interleaved_head_dim is None:
        return rows
    heads = rows.reshape(-1, 2, interleaved_head_dim // 2, rows.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)
