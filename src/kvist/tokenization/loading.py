"""Finds and loads the tokenizer of a checkpoint: GGUF metadata, a Hugging Face folder, or a file the user names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from kvist.core.errors import ConfigError
from kvist.tokenization.chat_template import MAX_TEMPLATE_CHARACTERS, ChatTemplate
from kvist.tokenization.gguf_tokenizer import GGUFVocabulary, build_gguf_backend
from kvist.tokenization.huggingface_tokenizer import load_huggingface_tokenizer
from kvist.tokenization.tokenizer import Tokenizer
from kvist.tokenization.tokenizer_cache import build_cached
from kvist.weights.checkpoint import Checkpoint


def load_tokenizer(checkpoint: Checkpoint, *, path: str | None = None, cache_folder: Path | None = None) -> Tokenizer:
    """Return the tokenizer of `checkpoint`, or of `path` (a tokenizer.json or a folder holding one) if given.

    cache_folder: where tokenizers that take long to build are kept for the next start.
    Raises CheckpointError if there is none or it is damaged, UnsupportedModelError if it is of an unknown kind.
    """
    if path is not None:
        return load_huggingface_tokenizer(Path(path))
    if checkpoint.kind == "hf":
        return load_huggingface_tokenizer(checkpoint.path)
    vocabulary = GGUFVocabulary(checkpoint.metadata)
    if vocabulary.byte_level or vocabulary.has_merges or cache_folder is None:
        # Measured: a tokenizer is built from given merges no slower than it is read back from JSON.
        backend = build_gguf_backend(vocabulary)
    else:
        backend = build_cached(vocabulary, cache_folder / "tokenizers")
    return Tokenizer(backend, vocabulary.traits())


def load_chat_template(
    checkpoint: Checkpoint, tokenizer: Tokenizer, *, path: str | None = None, now: Callable[[], datetime]
) -> ChatTemplate | None:
    """Return the chat template in the file `path` if given, else that of `checkpoint`, or None if it has none.

    now: local time, for templates that state the date. Raises ConfigError if the template cannot be read or compiled.
    """
    if path is not None:
        source: str | None = _read_text(Path(path))
        origin = path
    else:
        source = _gguf_template(checkpoint) if checkpoint.kind == "gguf" else _folder_template(checkpoint)
        origin = str(checkpoint.path)
    if source is None:
        return None
    return ChatTemplate(source, named_tokens=tokenizer.traits.named_tokens, now=now, origin=origin)


def _gguf_template(checkpoint: Checkpoint) -> str | None:
    source = checkpoint.metadata.get("tokenizer.chat_template")
    return source if isinstance(source, str) else None


def _folder_template(checkpoint: Checkpoint) -> str | None:
    """Look where Hugging Face checkpoints keep it, newest habit first."""
    file = checkpoint.side_file("chat_template.jinja")
    if file is not None:
        return _read_text(file)
    for name in ("chat_template.json", "tokenizer_config.json"):
        source = _default_of((checkpoint.side_json(name) or {}).get("chat_template"))
        if source is not None:
            return source
    return None


def _default_of(template: Any) -> str | None:  # Any: JSON
    """Return the template itself, or the one called "default" in a list of named ones."""
    if isinstance(template, str):
        return template
    if not isinstance(template, list):
        return None
    named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    source = named.get("default")
    return source if isinstance(source, str) else None


def _read_text(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as lines:
            return lines.read(MAX_TEMPLATE_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the chat template {file}: {error}") from error
