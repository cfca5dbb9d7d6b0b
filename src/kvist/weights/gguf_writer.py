"""Writes GGUF version 3 files, tensor by tensor, so that a model larger than memory can be written."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from kvist.weights.atomic_file import write_atomically
from kvist.weights.tensor import Chunk, StoredTensor

ALIGNMENT = 32

_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64 = 4, 5, 6, 7, 8, 9, 10


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[StoredTensor],
    chunks: Callable[[StoredTensor], Iterable[Chunk]],
) -> None:
    """Write `path`. `chunks(tensor)` gives a tensor's bytes in order, in pieces of any size.

    Metadata values are str, bool, int, float or a list of one of them; whole numbers become uint32, in lists int32.
    Raises CheckpointError if the file cannot be written.
    """
    with write_atomically(path) as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
        for key, value in metadata.items():
            file.write(_string(key) + _typed(value))
        offset = 0
        for tensor in tensors:
            file.write(_string(tensor.name) + struct.pack("<I", len(tensor.shape)))
            file.write(struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape)))
            file.write(struct.pack("<IQ", tensor.format.ggml_type, offset))
            offset += -(-tensor.num_bytes // ALIGNMENT) * ALIGNMENT
        for tensor in tensors:
            _pad(file)
            start = file.tell()
            file.writelines(chunks(tensor))
            if file.tell() - start != tensor.num_bytes:
                raise ValueError(f"{tensor.name}: {file.tell() - start} bytes came, {tensor.num_bytes} are needed")
        _pad(file)


def _pad(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % ALIGNMENT))


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _typed(value: Any) -> bytes:
    if isinstance(value, list):
        kind = _INT32 if _kind(value[0]) == _UINT32 else _kind(value[0])
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_plain(kind, each) for each in value)
    kind = _kind(value)
    return struct.pack("<I", kind) + _plain(kind, value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _UINT32 if 0 <= value < 2**32 else _UINT64
    if isinstance(value, float):
        return _FLOAT32
    return _STRING


def _plain(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _string(value)
    return struct.pack({_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?", _UINT64: "<Q"}[kind], value)
