"""The mapped files behind tensors: their headers, and what the system may forget of them."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvist.weights.tensor import Tensor


def mapped_files(tensors: Iterable[Tensor]) -> Mapping[mmap.mmap, int]:
    """Each mapped file, in the order of its first tensor, and where in it the tensors' bytes begin."""
    begins: dict[mmap.mmap, int] = {}
    for tensor in tensors:
        file = _file_of(tensor.data)
        if file is not None:
            offset = _address(tensor.data) - _address(np.frombuffer(file, np.uint8))
            begins[file] = min(offset, begins.get(file, offset))
    return begins


def drop_read_pages(tensors: Iterable[Tensor]) -> None:
    """Let go of the files' pages in this process: what is used again is mapped in anew, from the page cache."""
    for file in mapped_files(tensors):
        file.madvise(mmap.MADV_DONTNEED)


def header_digest(tensors: Iterable[Tensor]) -> str:
    """A hash of all that stands before the tensors' bytes in each file, in order: metadata and tensor tables."""
    digest = hashlib.sha256()
    for file, header_bytes in mapped_files(tensors).items():
        digest.update(header_bytes.to_bytes(8, "little"))
        with memoryview(file) as view, view[:header_bytes] as header:
            digest.update(header)
    return digest.hexdigest()


def _file_of(data: NDArray[np.uint8]) -> mmap.mmap | None:
    owner: Any = data  # Any: what a chain of views ends in
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    return owner if isinstance(owner, mmap.mmap) else None


def _address(data: NDArray[np.uint8]) -> int:
    address: int = data.__array_interface__["data"][0]
    return address
