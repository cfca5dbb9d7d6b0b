"""Reads GGUF files, versions 2 and 3, single or split. Trusts nothing: every count and offset is checked first.

Layout: magic, version, number of tensors, number of key-values, the key-values, one record per tensor, padding to the
alignment, then the tensors' bytes. All little-endian. Tensor data stays in the mapped file until it is used.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.quantization.formats import WeightFormat, format_of_ggml_type
from kvist.weights.gguf_cursor import ARRAY, SCALARS, STRING, UINT32, UINT64, GGUFCursor
from kvist.weights.tensor import Tensor, map_file

Metadata = dict[str, Any]  # str, int, float, bool or a list of one of them

_MAX_NAME_BYTES = 65_535
_MAX_STRING_BYTES = 16 << 20
_MAX_KEY_VALUES = 65_536
_MAX_TENSORS = 1 << 20
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20
_MAX_SPLITS = 1_000
_TOKENIZER_PREFIX = "tokenizer."
SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


def read_gguf(path: Path, *, with_vocabulary: bool = True) -> tuple[Metadata, dict[str, Tensor]]:
    """Return metadata and tensors of the model at `path`, which may be any part of a split model.

    with_vocabulary: False leaves the tokenizer's arrays out, which take more time and memory than all else.
    Raises CheckpointError saying what is wrong with the file; UnsupportedModelError for kinds it cannot read.
    """
    metadata: Metadata = {}
    tensors: dict[str, Tensor] = {}
    for number, part in enumerate(split_files(path)):
        part_metadata, part_tensors = _read_file(part, with_vocabulary=with_vocabulary)
        if number == 0:
            metadata = part_metadata
        for name, tensor in part_tensors.items():
            if name in tensors:
                raise CheckpointError(f"{part}: tensor {name!r} is in more than one part")
            tensors[name] = tensor
    promised = metadata.get("split.tensors.count", len(tensors))
    if promised != len(tensors):
        raise CheckpointError(f"{path}: the parts hold {len(tensors)} tensors, {promised} are promised")
    return metadata, tensors


def split_files(path: Path) -> list[Path]:
    """Return all parts of the model that `path` belongs to, in order. Raises CheckpointError if one is missing."""
    match = SPLIT_NAME.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= _MAX_SPLITS:
        raise CheckpointError(f"{path}: a model of {count} parts")
    parts = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: {len(missing)} of {count} parts are missing beside it: {', '.join(missing[:3])}"
        )
    return parts


def _read_file(path: Path, *, with_vocabulary: bool) -> tuple[Metadata, dict[str, Tensor]]:
    cursor = GGUFCursor(path, map_file(path))
    num_tensors, num_key_values = _read_header(cursor)
    metadata = _read_metadata(cursor, num_key_values, with_vocabulary=with_vocabulary)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {alignment!r}, not a power of two from 8 to {_MAX_ALIGNMENT}")
    if SPLIT_NAME.match(path.name) is None and metadata.get("split.count", 1) not in (0, 1):
        raise cursor.error("part of a split model: keep its name, which ends in -00001-of-0000N.gguf")
    return metadata, _read_tensors(cursor, num_tensors, alignment)


def _read_header(cursor: GGUFCursor) -> tuple[int, int]:
    magic = cursor.take(4, "magic")
    if magic != b"GGUF":
        raise cursor.error(f"not a GGUF file: it starts with {magic!r}")
    version = cursor.scalar(UINT32, "version")
    if version not in (2, 3):
        if version and version & 0xFFFF == 0:
            raise UnsupportedModelError(f"{cursor.path}: big-endian GGUF is not supported")
        raise UnsupportedModelError(f"{cursor.path}: GGUF version {version} is not supported; versions 2 and 3 are")
    num_tensors = cursor.count(_MAX_TENSORS, 24, "tensors")
    num_key_values = cursor.count(_MAX_KEY_VALUES, 13, "key-values")
    return num_tensors, num_key_values


def _read_metadata(cursor: GGUFCursor, num_key_values: int, *, with_vocabulary: bool) -> Metadata:
    metadata: Metadata = {}
    for _ in range(num_key_values):
        key = cursor.string(_MAX_NAME_BYTES, "key")
        if key in metadata:
            raise cursor.error(f"key {key!r} appears twice")
        kind = cursor.scalar(UINT32, "value type")
        if kind == ARRAY and not with_vocabulary and key.startswith(_TOKENIZER_PREFIX):
            _skip_array(cursor, key)
        else:
            metadata[key] = _read_value(cursor, kind, key)
    return metadata


def _skip_array(cursor: GGUFCursor, key: str) -> None:
    element_kind = cursor.scalar(UINT32, key)
    if element_kind == STRING:
        cursor.skip_strings(cursor.array_length(8, key), key)
    else:
        _read_array(cursor, element_kind, key)


def _read_value(cursor: GGUFCursor, kind: int, key: str) -> Any:
    if kind == STRING:
        return cursor.string(_MAX_STRING_BYTES, key)
    if kind == ARRAY:
        return _read_array(cursor, cursor.scalar(UINT32, key), key)
    if kind not in SCALARS:
        raise cursor.error(f"{key!r} has the unknown type {kind}")
    return cursor.scalar(kind, key)


def _read_array(cursor: GGUFCursor, element_kind: int, key: str) -> list[Any]:
    if element_kind == STRING:
        return cursor.strings(cursor.array_length(8, key), key)
    if element_kind in SCALARS:
        return cursor.scalars(element_kind, cursor.array_length(SCALARS[element_kind].size, key), key)
    raise cursor.error(f"{key!r} is an array of {'arrays' if element_kind == ARRAY else 'an unknown type'}")


def _read_tensors(cursor: GGUFCursor, num_tensors: int, alignment: int) -> dict[str, Tensor]:
    records = [_read_tensor_record(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    end_of_previous = 0
    # In order of offset, so that overlaps show.
    for name, shape, weight_format, offset in sorted(records, key=lambda record: record[3]):
        num_bytes = weight_format.num_bytes(math.prod(shape))
        start = data_start + offset
        if name in tensors:
            raise cursor.error(f"tensor {name!r} appears twice")
        if offset % alignment:
            raise cursor.error(f"tensor {name!r} starts at {offset}, not a multiple of {alignment}")
        if offset < end_of_previous:
            raise cursor.error(f"tensor {name!r} overlaps another")
        if start + num_bytes > cursor.size:
            raise cursor.error(
                f"tensor {name!r} needs bytes {start} to {start + num_bytes}, but the file ends at {cursor.size}; "
                "is the download complete?"
            )
        end_of_previous = offset + num_bytes
        data = cursor.data[start : start + num_bytes]
        tensors[name] = Tensor(name=name, shape=shape, format=weight_format, data=data)
    return {name: tensors[name] for name, *_ in records}


def _read_tensor_record(cursor: GGUFCursor) -> tuple[str, tuple[int, ...], WeightFormat, int]:
    name = cursor.string(_MAX_NAME_BYTES, "tensor name")
    num_dimensions = cursor.scalar(UINT32, name)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name!r} has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
    dimensions = cursor.scalars(UINT64, num_dimensions, name)
    if 0 in dimensions:
        raise cursor.error(f"tensor {name!r} has an empty dimension: {dimensions}")
    try:
        weight_format = format_of_ggml_type(cursor.scalar(UINT32, name))
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{cursor.path}: tensor {name!r}: {error}") from error
    if dimensions[0] % weight_format.block_elements:
        raise cursor.error(f"tensor {name!r}: rows of {dimensions[0]} do not fill whole {weight_format.name} blocks")
    # The file lists the fastest axis first.
    return name, tuple(reversed(dimensions)), weight_format, cursor.scalar(UINT64, name)
