"""The number formats of K and V: how float32 is rounded into them and widened again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import ConfigError

Stored = NDArray[Any]  # float32, float16, or the upper halves of float32 as uint16


@dataclass(frozen=True, slots=True)
class KVDtype:
    """`name` as in CacheConfig.kv_cache_dtype; `numpy_dtype` is what lies in memory."""

    name: str
    numpy_dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        return self.numpy_dtype.itemsize

    def round(self, values: NDArray[np.float32]) -> Stored:
        """Round to nearest, ties to even. Values beyond float16's range become infinite."""
        if self.name == "bfloat16":
            bits = values.view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
        return values.astype(self.numpy_dtype, copy=False)

    def widen(self, stored: Stored) -> NDArray[np.float32]:
        if self.name == "bfloat16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32, copy=False)


KV_DTYPES = {
    "float32": KVDtype("float32", np.dtype(np.float32)),
    "float16": KVDtype("float16", np.dtype(np.float16)),
    "bfloat16": KVDtype("bfloat16", np.dtype(np.uint16)),
}


def kv_dtype(name: str, executor: str) -> KVDtype:
    """The dtype that the option `name` means; "auto" is float16 on the native executor, float32 on the reference."""
    auto = "float16" if executor == "native" else "float32"
    found = KV_DTYPES.get(auto if name == "auto" else name)
    if found is None:
        raise ConfigError(f"kv_cache_dtype {name!r} is unknown; there are auto, {', '.join(KV_DTYPES)}")
    return found
