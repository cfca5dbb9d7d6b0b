"""Writes safetensors files, tensor by tensor, so that a model larger than memory can be written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kvist.weights.atomic_file import write_atomically
from kvist.weights.safetensors_reader import INDEX_NAME, SINGLE_NAME
from kvist.weights.tensor import Chunk, StoredTensor

MAX_SHARD_BYTES = 4 << 30


def write_safetensors_folder(
    folder: Path,
    tensors: Sequence[StoredTensor],
    chunks: Callable[[StoredTensor], Iterable[Chunk]],
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write all tensors into `folder`: one file, or several with an index if they exceed `max_shard_bytes`.

    Raises CheckpointError if a file cannot be written.
    """
    shards: list[list[StoredTensor]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(each.num_bytes for each in shards[-1]) + tensor.num_bytes > max_shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        write_safetensors(folder / SINGLE_NAME, tensors, chunks)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / name, shard, chunks)
        weight_map |= {tensor.name: name for tensor in shard}
    total_size = sum(tensor.num_bytes for tensor in tensors)
    with write_atomically(folder / INDEX_NAME) as file:
        file.write(json.dumps({"metadata": {"total_size": total_size}, "weight_map": weight_map}, indent=2).encode())


def write_safetensors(
    path: Path, tensors: Sequence[StoredTensor], chunks: Callable[[StoredTensor], Iterable[Chunk]]
) -> None:
    """Write one file. `chunks(tensor)` gives a tensor's bytes in order, in pieces of any size."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.format.name, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts aligned
    with write_atomically(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            file.writelines(chunks(tensor))
        if file.tell() != 8 + len(text) + end:
            raise ValueError(f"{path}: {file.tell() - 8 - len(text)} bytes came, {end} are needed")
