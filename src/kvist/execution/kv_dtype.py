"""The number formats of K and V: how float32 is rounded into them and widened again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import ConfigError

Stored = NDArray[Any]  # float32, float16, int8, or the upper halves of float32 as uint16

SCALE_BYTES = 4  # a float32 per token and head, where numbers are scaled
INT8_MAX = np.float32(127)
SMALLEST_SCALED = np.float32(1e-30)  # vectors below it become zeros: a reciprocal would overflow


@dataclass(frozen=True, slots=True)
class KVDtype:
    """`name` as in CacheConfig.kv_cache_dtype; `numpy_dtype` is what lies in memory.

    is_scaled: a token's numbers of one head share a scale, so that the largest of them becomes +-127.
    is_paired: numbers lie two by two, see KVStorage.
    """

    name: str
    numpy_dtype: np.dtype[Any]
    is_scaled: bool = False
    is_paired: bool = False

    def vector_bytes(self, head_dim: int) -> int:
        """Bytes of one token's K (or V) of one head, its scale among them."""
        return head_dim * self.numpy_dtype.itemsize + SCALE_BYTES * self.is_scaled

    def round(self, values: NDArray[np.float32]) -> Stored:
        """Round to nearest, ties to even. Values beyond float16's range become infinite."""
        assert not self.is_scaled
        if self.name == "bfloat16":
            bits = values.view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
        return values.astype(self.numpy_dtype, copy=False)

    def widen(self, stored: Stored) -> NDArray[np.float32]:
        assert not self.is_scaled
        if self.name == "bfloat16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32, copy=False)


def scale_and_round(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 numbers, and a scale for each vector along the last axis. What is not finite gives a scale of NaN."""
    top = np.abs(values).max(axis=-1)
    is_finite = np.isfinite(top)
    inverse = np.divide(INT8_MAX, top, out=np.zeros_like(top), where=(top > SMALLEST_SCALED) & is_finite)
    rounded = np.rint(np.where(is_finite[..., None], values, 0) * inverse[..., None]).astype(np.int8)
    return rounded, np.where(is_finite, top / INT8_MAX, np.float32(np.nan))


KV_DTYPES = {
    "float32": KVDtype("float32", np.dtype(np.float32)),
    "float16": KVDtype("float16", np.dtype(np.float16)),
    "bfloat16": KVDtype("bfloat16", np.dtype(np.uint16), is_paired=True),
    "int8": KVDtype("int8", np.dtype(np.int8), is_scaled=True),
}


MATRIX_DEPTH = 32  # numbers that a matrix unit adds up at once


def kv_dtype(name: str, executor: str, *, isa: str = "", head_dim: int = 0) -> KVDtype:
    """The dtype that the option `name` means.

    "auto" is float32 on the reference executor. On the native one it is bfloat16 where the kernels of `isa` multiply
    heads of `head_dim` numbers on the matrix unit, else float16, which takes as many bytes and rounds less.
    """
    found = KV_DTYPES.get(_auto(executor, isa, head_dim) if name == "auto" else name)
    if found is None:
        raise ConfigError(f"kv_cache_dtype {name!r} is unknown; there are auto, {', '.join(KV_DTYPES)}")
    return found


def _auto(executor: str, isa: str, head_dim: int) -> str:
    if executor != "native":
        return "float32"
    return "bfloat16" if isa.startswith("amx") and head_dim and head_dim % MATRIX_DEPTH == 0 else "float16"
