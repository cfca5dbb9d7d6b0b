"""One tensor of a checkpoint: its name, shape, format and a view of its bytes in the mapped file."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import CheckpointError
from kvist.quantization.dequantize import dequantize
from kvist.quantization.formats import WeightFormat

Chunk = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tensor:
    """shape: row-major, so a linear's weight is [out, in]. data: raw bytes, 1-D uint8, read-only, read on demand."""

    name: str
    shape: tuple[int, ...]
    format: WeightFormat
    data: NDArray[np.uint8]

    @property
    def num_elements(self) -> int:
        return len(self.data) // self.format.block_bytes * self.format.block_elements

    def dequantize(self) -> NDArray[np.float32]:
        """Return the numbers in `shape`. F32 tensors come as a read-only view of the file."""
        return dequantize(self.data, self.format).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor to be written: name in the file, row-major shape, format."""

    name: str
    shape: tuple[int, ...]
    format: WeightFormat

    @property
    def num_bytes(self) -> int:
        return self.format.num_bytes(math.prod(self.shape))


def map_file(path: Path) -> NDArray[np.uint8]:
    """Map `path` read-only. Raises CheckpointError if it cannot be opened or is empty."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise CheckpointError(f"{path} is empty") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    return np.frombuffer(mapped, dtype=np.uint8)
