"""Finds and loads the tokenizer of a checkpoint: GGUF metadata, a Hugging Face folder, or a file the user names."""

from __future__ import annotations

from pathlib import Path

from kvist.tokenization.gguf_tokenizer import GGUFVocabulary, build_gguf_backend
from kvist.tokenization.huggingface_tokenizer import load_huggingface_tokenizer
from kvist.tokenization.tokenizer import Tokenizer
from kvist.weights.checkpoint import Checkpoint


def load_tokenizer(checkpoint: Checkpoint, *, path: str | None = None) -> Tokenizer:
    """Return the tokenizer of `checkpoint`, or of `path` (a tokenizer.json or a folder holding one) if given.

    Raises CheckpointError if there is none or it is damaged, UnsupportedModelError if it is of an unknown kind.
    """
    if path is not None:
        return load_huggingface_tokenizer(Path(path))
    if checkpoint.kind == "hf":
        return load_huggingface_tokenizer(checkpoint.path)
    vocabulary = GGUFVocabulary(checkpoint.metadata)
    return Tokenizer(build_gguf_backend(vocabulary), vocabulary.traits())
