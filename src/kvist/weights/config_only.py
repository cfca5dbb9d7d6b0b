"""A checkpoint of which only config.json is looked at: enough for a model's shape, however weights are stored."""

from __future__ import annotations

from pathlib import Path

from kvist.weights.checkpoint import MAX_JSON_BYTES, Checkpoint
from kvist.weights.safetensors_reader import read_json_file


def open_config(path: Path) -> Checkpoint:
    """Open a config.json, or the one in a folder, as a checkpoint without tensors. Raises CheckpointError."""
    file = path / "config.json" if path.is_dir() else path
    metadata = read_json_file(file, MAX_JSON_BYTES)
    if not str(metadata.get("model_type", "")).startswith("gemma"):
        metadata = {"tie_word_embeddings": False} | metadata  # there are no tensors to ask
    return Checkpoint(path=file.parent, kind="hf", metadata=metadata, tensors={}, identity=str(file))
