"""Reads safetensors files, single or sharded by an index. Trusts nothing: every offset is checked first.

Layout: length of the header (8 bytes, little-endian), the header as JSON, then the tensors' bytes without gaps.
Tensor data stays in the mapped file until it is used.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.quantization.formats import BF16, F16, F32
from kvist.weights.tensor import Tensor, map_file

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_MAX_HEADER_BYTES = 32 << 20
_MAX_DIMENSIONS = 8
SAFETENSORS_FORMATS = {"F32": F32, "F16": F16, "BF16": BF16}


def read_safetensors_folder(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a Hugging Face checkpoint folder. Raises CheckpointError saying what is wrong."""
    index_path = folder / INDEX_NAME
    if index_path.is_file():
        return _read_sharded(index_path)
    if (folder / SINGLE_NAME).is_file():
        return read_safetensors(folder / SINGLE_NAME)
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) == 1:
        return read_safetensors(folder / found[0])
    if found:
        raise CheckpointError(f"{folder}: {len(found)} safetensors files but no {INDEX_NAME}")
    raise CheckpointError(f"{folder}: no safetensors weights in it; other weight files are not read")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one file, in order of their place in it."""
    data = map_file(path)
    if len(data) < 8:
        raise CheckpointError(f"{path}: {len(data)} bytes are too few for a safetensors file")
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    if header_bytes > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise CheckpointError(f"{path}: a header of {header_bytes} bytes in a file of {len(data)}")
    header = parse_json(data[8 : 8 + header_bytes].tobytes(), path)
    body = data[8 + header_bytes :]
    header.pop("__metadata__", None)
    entries = sorted((_read_entry(path, name, entry) for name, entry in header.items()), key=lambda entry: entry[2])
    tensors: dict[str, Tensor] = {}
    position = 0
    for name, shape, (start, end), dtype in entries:
        num_bytes = SAFETENSORS_FORMATS[dtype].num_bytes(math.prod(shape))
        if start != position or end - start != num_bytes or end > len(body):
            raise CheckpointError(
                f"{path}: tensor {name!r} ({dtype}, shape {list(shape)}) is at bytes {start} to {end}, "
                f"expected {position} to {position + num_bytes} of {len(body)}; is the download complete?"
            )
        position = end
        tensors[name] = Tensor(name=name, shape=shape, format=SAFETENSORS_FORMATS[dtype], data=body[start:end])
    if position != len(body):
        raise CheckpointError(f"{path}: {len(body) - position} bytes belong to no tensor")
    return tensors


def _read_entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int], str]:
    if not isinstance(entry, dict):
        raise CheckpointError(f"{path}: the record of tensor {name!r} is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{path}: the record of tensor {name!r} is malformed: {str(entry)[:200]}")
    if len(shape) > _MAX_DIMENSIONS:
        raise CheckpointError(f"{path}: tensor {name!r} has {len(shape)} dimensions")
    if 0 in shape:
        raise CheckpointError(f"{path}: tensor {name!r} has an empty dimension: {shape}")
    if dtype not in SAFETENSORS_FORMATS:
        raise UnsupportedModelError(
            f"{path}: tensor {name!r} is in {dtype[:20]}; supported in safetensors are {', '.join(SAFETENSORS_FORMATS)}"
        )
    return name, tuple(shape), (offsets[0], offsets[1]), dtype


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _read_sharded(index_path: Path) -> dict[str, Tensor]:
    weight_map = parse_json(_read_small(index_path, _MAX_HEADER_BYTES), index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_path}: no weight_map in it")
    shards: dict[str, dict[str, Tensor]] = {}
    tensors: dict[str, Tensor] = {}
    for name, shard_name in weight_map.items():
        # A plain file name only: an index must not lead out of its folder.
        if not isinstance(shard_name, str) or Path(shard_name).name != shard_name or "\0" in shard_name:
            raise CheckpointError(f"{index_path}: {str(shard_name)[:200]!r} is not a file name")
        if shard_name not in shards:
            shards[shard_name] = read_safetensors(index_path.with_name(shard_name))
        if name not in shards[shard_name]:
            raise CheckpointError(f"{index_path}: tensor {name!r} is not in {shard_name}")
        tensors[name] = shards[shard_name][name]
    for shard_name, shard in shards.items():
        stray = next((name for name in shard if weight_map.get(name) != shard_name), None)
        if stray is not None:
            raise CheckpointError(f"{index_path}: tensor {stray!r} of {shard_name} is not listed there")
    return tensors


def read_json_file(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in `path`. Raises CheckpointError if it is missing, too big, damaged or no object."""
    return parse_json(_read_small(path, max_bytes), path)


def _read_small(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if len(text) > max_bytes:
        raise CheckpointError(f"{path} is larger than {max_bytes} bytes")
    return text


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object in `text`; repeated keys are refused. Raises CheckpointError naming `path`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key appears twice")
        return found

    try:
        parsed = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {str(error)[:200]}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: a JSON object is expected")
    return parsed
