"""A model on disk, whatever its kind: metadata and named tensors. Knows nothing of architectures."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.weights.gguf_reader import read_gguf, split_files
from kvist.weights.safetensors_reader import read_json_file, read_safetensors_folder
from kvist.weights.tensor import Tensor

MAX_JSON_BYTES = 8 << 20  # of config.json and the like


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """An opened checkpoint. Tensor bytes are read from the mapped files when they are used.

    metadata: a GGUF file's key-values, or the parsed config.json. identity changes whenever a file does; it
    names files, sizes and times, not contents. file_stamps: size and time of change (ns) of each file.
    """

    path: Path
    kind: Literal["gguf", "hf"]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    identity: str
    file_stamps: tuple[tuple[int, int], ...] = ()

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor called `name`. Raises CheckpointError naming the nearest if there is none."""
        found = self.tensors.get(name)
        if found is None:
            near = difflib.get_close_matches(name, self.tensors, n=3)
            hint = f"; nearest are {', '.join(near)}" if near else ""
            raise CheckpointError(f"{self.path}: no tensor {name!r} among {len(self.tensors)}{hint}")
        return found

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(len(tensor.data) for tensor in self.tensors.values())

    @property
    def num_parameters(self) -> int:
        return sum(tensor.num_elements for tensor in self.tensors.values())

    @property
    def bytes_per_format(self) -> Mapping[str, int]:
        """Format name -> stored bytes, largest first."""
        count: Counter[str] = Counter()
        for tensor in self.tensors.values():
            count[tensor.format.name] += len(tensor.data)
        return dict(count.most_common())

    def side_file(self, name: str) -> Path | None:
        """Return a file of a Hugging Face folder, say tokenizer.json; None if absent or if this is a GGUF file."""
        path = self.path / name
        return path if self.kind == "hf" and path.is_file() else None

    def side_json(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in such a file, say generation_config.json. Raises CheckpointError if damaged."""
        path = self.side_file(name)
        return None if path is None else read_json_file(path, MAX_JSON_BYTES)


def open_checkpoint(path: Path, *, with_vocabulary: bool = True) -> Checkpoint:
    """Open a .gguf file (any part of a split one), or a folder with config.json and safetensors, or with one .gguf.

    with_vocabulary: False leaves the tokenizer's arrays out of a GGUF file's metadata.
    Raises CheckpointError saying what is wrong; UnsupportedModelError if it is sound but cannot be read.
    """
    if path.is_dir() and not (path / "config.json").is_file():
        path = _only_gguf_in(path)
    if path.is_dir():
        config = read_json_file(path / "config.json", MAX_JSON_BYTES)
        if config.get("quantization_config") is not None:
            raise UnsupportedModelError(
                f"{path}: Hugging Face checkpoints with a quantization_config are not supported"
            )
        tensors = read_safetensors_folder(path)
        files = [path / "config.json", *sorted(path.glob("*.safetensors"))]
        return Checkpoint(path=path, kind="hf", metadata=config, tensors=tensors, **_file_facts(files))
    if not path.is_file():
        raise CheckpointError(f"{'not a regular file' if path.exists() else 'no such file or folder'}: {path}")
    metadata, tensors = read_gguf(path, with_vocabulary=with_vocabulary)
    return Checkpoint(path=path, kind="gguf", metadata=metadata, tensors=tensors, **_file_facts(split_files(path)))


def _only_gguf_in(folder: Path) -> Path:
    firsts = sorted({split_files(path)[0] for path in folder.glob("*.gguf")})
    if len(firsts) == 1:
        return firsts[0]
    if firsts:
        raise CheckpointError(f"{folder} holds several models; name one: {', '.join(path.name for path in firsts)}")
    raise CheckpointError(f"{folder} holds neither a config.json nor a .gguf file")


def _file_facts(files: list[Path]) -> dict[str, Any]:  # Any: keyword arguments of Checkpoint
    digest, stamps = hashlib.sha256(), []
    for file in files:
        status = file.stat()
        stamps.append((status.st_size, status.st_mtime_ns))
        digest.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return {"identity": digest.hexdigest(), "file_stamps": tuple(stamps)}
