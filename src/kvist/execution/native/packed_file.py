"""Packed weights as one file, written whole and read or mapped afterwards. Knows arrays by name, not models.

Layout: magic, version of this layout, length and checksum of the header, the header, padding, then the arrays, each at
a multiple of ALIGNMENT. The header (MessagePack) says what the file was made from and where each array lies. A reader
trusts none of it: it knows from the checkpoint which arrays of which sizes must be there.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from kvist.core.errors import CheckpointError
from kvist.execution.native.huge_pages import Bytes, read_to_huge_pages
from kvist.weights.atomic_file import write_atomically

FILE_VERSION = 1
ALIGNMENT = 4096
_MAGIC = b"kvistpkd"
_HEAD = struct.Struct("<8sIII")
_MAX_HEADER_BYTES = 64 << 20


class _Stored(msgspec.Struct, frozen=True):
    name: str
    offset: int
    num_bytes: int
    crc32: int


class _Header(msgspec.Struct, frozen=True):
    key: str
    arrays: list[_Stored]
    file_bytes: int


def write_packed_file(path: Path, key: str, arrays: Mapping[str, Bytes]) -> None:
    """Write all arrays so that others see the whole file or none, even if the machine stops in between.

    Raises CheckpointError if the place cannot be written.
    """
    stored, offset = [], 0
    for name, array in arrays.items():
        stored.append(_Stored(name, offset, array.nbytes, zlib.crc32(array.data)))
        offset = _aligned(offset + array.nbytes)
    with write_atomically(path) as file:
        file.write(_header_bytes(key, stored, offset))
        for array in arrays.values():
            file.write(array.data)
            file.write(bytes(-array.nbytes % ALIGNMENT))
        file.flush()
        os.fsync(file.fileno())  # a name must not come to stand for bytes that were never written


def load_packed_file(
    path: Path, key: str, sizes: Mapping[str, int], *, verify: bool, max_copied_bytes: int
) -> dict[str, Bytes]:
    """The arrays that `sizes` names with their bytes.

    A file of at most `max_copied_bytes` is read into huge pages; a larger one is mapped, read-only, and its pages are
    shared with all who map it. verify: compare all checksums, which reads everything. Raises FileNotFoundError if
    there is no such file, and CheckpointError if it is not, whole and in every place, the file that was written for
    `key`.
    """
    with path.open("rb", buffering=0) as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except ValueError as error:
            raise CheckpointError(f"{path} is empty") from error
        data = np.frombuffer(mapped, np.uint8)
        header, begin = _read_header(path, data)
        if header.key != key:
            raise CheckpointError(f"{path} was made from another checkpoint or by another version")
        if header.file_bytes == len(data) <= max_copied_bytes:
            data = read_to_huge_pages(file, len(data))
    if header.file_bytes != len(data):
        raise CheckpointError(f"{path} has {len(data)} bytes, {header.file_bytes} were written")
    if {stored.name: stored.num_bytes for stored in header.arrays} != sizes or len(header.arrays) != len(sizes):
        raise CheckpointError(f"{path} holds other arrays than the checkpoint asks for")
    arrays = {}
    for stored in header.arrays:
        start = begin + stored.offset
        if stored.offset < 0 or stored.offset % ALIGNMENT or start + stored.num_bytes > len(data):
            raise CheckpointError(f"{path}: array {stored.name!r} lies outside it")
        arrays[stored.name] = data[start : start + stored.num_bytes]
    if verify:
        _verify(path, header.arrays, arrays)
    return arrays


def _verify(path: Path, stored: Iterable[_Stored], arrays: Mapping[str, Bytes]) -> None:
    for each in stored:
        if zlib.crc32(arrays[each.name].data) != each.crc32:
            raise CheckpointError(f"{path}: array {each.name!r} is not what was written")


def _read_header(path: Path, data: Bytes) -> tuple[_Header, int]:
    """The header, and where the arrays begin."""
    if len(data) < _HEAD.size:
        raise CheckpointError(f"{path} is cut off")
    magic, version, num_bytes, crc32 = _HEAD.unpack(data[: _HEAD.size].tobytes())
    if magic != _MAGIC or version != FILE_VERSION:
        raise CheckpointError(f"{path} is no file of packed weights, or of another version")
    if num_bytes > min(_MAX_HEADER_BYTES, len(data) - _HEAD.size):
        raise CheckpointError(f"{path} is cut off in its header")
    text = data[_HEAD.size : _HEAD.size + num_bytes].tobytes()
    if zlib.crc32(text) != crc32:
        raise CheckpointError(f"{path} has a damaged header")
    try:
        header = msgspec.msgpack.decode(text, type=_Header)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header: {error}") from error
    return header, _aligned(_HEAD.size + num_bytes)


def _header_bytes(key: str, stored: list[_Stored], arrays_bytes: int) -> bytes:
    """Head and header, padded. The header holds the length of the whole file, so its own length is found first."""
    file_bytes = 0
    while True:  # a longer number may lengthen the header past a multiple of the alignment, once
        text = msgspec.msgpack.encode(_Header(key, stored, file_bytes))
        begin = _aligned(_HEAD.size + len(text))
        if file_bytes == begin + arrays_bytes:
            break
        file_bytes = begin + arrays_bytes
    head = _HEAD.pack(_MAGIC, FILE_VERSION, len(text), zlib.crc32(text)) + text
    return head + bytes(begin - len(head))


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
