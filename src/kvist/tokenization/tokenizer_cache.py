"""Keeps built SentencePiece tokenizers on disk: their merges must be derived from scores, which takes seconds."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec
import tokenizers
from tokenizers import Tokenizer as Backend

from kvist.core.errors import CheckpointError
from kvist.tokenization.gguf_tokenizer import GGUFVocabulary, build_gguf_backend
from kvist.tokenization.library_errors import checkpoint_errors
from kvist.weights.atomic_file import write_atomically

_LAYOUT = 1  # raise it when build_gguf_backend builds something else from the same metadata


def build_cached(vocabulary: GGUFVocabulary, folder: Path) -> Backend:
    """Return the backend of `vocabulary`, from `folder` if it is there; build and store it otherwise.

    A file that is damaged is built again; a folder that cannot be written costs time only.
    """
    file = folder / f"{_key(vocabulary)}.json"
    stored = _load(file)
    if stored is not None:
        return stored
    backend = build_gguf_backend(vocabulary)
    with contextlib.suppress(CheckpointError), write_atomically(file) as out:
        out.write(backend.to_str(pretty=False).encode())
    return backend


def _load(file: Path) -> Backend | None:
    if not file.is_file():
        return None
    try:
        with checkpoint_errors(f"{file} is damaged"):
            return Backend.from_buffer(file.read_bytes())
    except CheckpointError:
        return None  # it is built again


def _key(vocabulary: GGUFVocabulary) -> str:
    """Name everything that the built tokenizer depends on."""
    parts = (
        _LAYOUT,
        tokenizers.__version__,
        vocabulary.model,
        vocabulary.adds_leading_space,
        vocabulary.tokens,
        vocabulary.types,
        vocabulary.scores,
    )
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()
