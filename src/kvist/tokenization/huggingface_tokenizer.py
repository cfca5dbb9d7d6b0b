"""Loads tokenizer.json with the files beside it, as Hugging Face checkpoints carry them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.tokenization.library_errors import checkpoint_errors
from kvist.tokenization.tokenizer import Tokenizer, TokenizerTraits
from kvist.weights.checkpoint import MAX_JSON_BYTES
from kvist.weights.safetensors_reader import read_json_file

MAX_FILE_BYTES = 256 << 20  # the largest public tokenizer.json has some 35 MB
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
# Of these classes alone `add_bos_token` in tokenizer_config.json overrides what tokenizer.json says.
_CLASSES_WITH_BOS_SWITCH = ("Llama", "CodeLlama", "Gemma")


class _Component(msgspec.Struct):
    """One part of tokenizer.json; `decoders` and `pretokenizers` when it is a sequence of others."""

    type: str
    decoders: list[_Component] = []
    prepend_scheme: str | None = None
    add_prefix_space: bool | None = None
    start: int = 0


class _TokenizerFile(msgspec.Struct):
    """The little of tokenizer.json that the library does not tell."""

    decoder: _Component | None = None


def load_huggingface_tokenizer(path: Path) -> Tokenizer:
    """Load `path`, a folder or a tokenizer.json; the files beside it are read if they are there.

    Raises CheckpointError if a file is missing or damaged, UnsupportedModelError for other kinds of vocabulary than
    byte-level BPE and SentencePiece.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    raw = _read(file)
    config = _read_object(file.parent / "tokenizer_config.json")
    with checkpoint_errors(f"{file} is no sound tokenizer.json"):
        backend = Backend.from_buffer(raw)
        parts = msgspec.json.decode(raw, type=_TokenizerFile)
        backend.no_truncation()
        backend.no_padding()
        _add_missing_tokens(backend, config)
        return Tokenizer(backend, _traits(backend, parts.decoder, file, config))


def _no_tokenizer_message(file: Path) -> str:
    if (file.parent / "tokenizer.model").is_file():
        return (
            f"{file.parent} has a tokenizer.model but no tokenizer.json, which kvist reads; save one with "
            "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return f"no tokenizer: {file} does not exist; give --tokenizer a tokenizer.json or a folder holding one"


def _traits(backend: Backend, decoder: _Component | None, file: Path, config: Mapping[str, Any]) -> TokenizerTraits:
    byte_level, adds_leading_space = _classify(decoder, file)
    special_map = _read_object(file.parent / "special_tokens_map.json")
    named = {name: text for name in _NAMED_TOKENS if (text := _text(config.get(name) or special_map.get(name)))}
    prefix, suffix = _template_ids(backend)
    bos = backend.token_to_id(named["bos_token"]) if "bos_token" in named else None
    if str(config.get("tokenizer_class", "")).startswith(_CLASSES_WITH_BOS_SWITCH) and bos is not None:
        switch = config.get("add_bos_token")
        if switch is False:
            prefix = tuple(index for index in prefix if index != bos)
        elif switch is True and bos not in prefix:
            prefix = (bos, *prefix)
    return TokenizerTraits(
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        byte_level=byte_level,
        adds_leading_space=adds_leading_space,
        prefix_ids=prefix,
        suffix_ids=suffix,
        bos_token_id=bos,
        eos_token_ids=_eos_ids(backend, file.parent, named.get("eos_token")),
        named_tokens=named,
    )


def _classify(decoder: _Component | None, file: Path) -> tuple[bool, bool]:
    """Return whether the vocabulary is byte-level, and whether a text gets a leading space."""
    parts = [] if decoder is None else (decoder.decoders or [decoder])
    kinds = {part.type for part in parts}
    if "ByteLevel" in kinds:
        return True, False
    if "Metaspace" in kinds:
        part = next(part for part in parts if part.type == "Metaspace")
        return False, part.prepend_scheme not in (None, "never") or bool(part.add_prefix_space)
    if {"Replace", "ByteFallback"} & kinds:
        return False, any(part.type == "Strip" and part.start > 0 for part in parts)
    found = ", ".join(part.type for part in parts) or "none"
    raise UnsupportedModelError(
        f"{file}: decoder {found}; kvist reads byte-level BPE (ByteLevel) and SentencePiece (Metaspace or ByteFallback)"
    )


def _template_ids(backend: Backend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the file's own post-processing puts before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start]), tuple(full[start + len(plain) :])
    return (), ()


def _eos_ids(backend: Backend, folder: Path, eos_text: str | None) -> tuple[int, ...]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_object(folder / name).get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        ids += [index for index in values if isinstance(index, int)]
    eos = backend.token_to_id(eos_text) if eos_text else None
    return tuple(dict.fromkeys(ids if eos is None else [*ids, eos]))


def _add_missing_tokens(backend: Backend, config: Mapping[str, Any]) -> None:
    """Add tokens that only tokenizer_config.json lists, in the order of their ids, which the library hands out."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    for key, entry in sorted(listed.items(), key=lambda item: int(item[0]) if item[0].isdigit() else 0):
        text = _text(entry)
        if not text or backend.token_to_id(text) is not None:
            continue
        backend.add_tokens([AddedToken(text, normalized=False, special=bool(entry.get("special")))])
        if backend.token_to_id(text) != int(key):
            raise CheckpointError(
                f"tokenizer_config.json gives {text!r} the id {key}, but tokenizer.json leaves it no such place"
            )


def _text(token: object) -> str | None:
    """Return a token's text, which these files write as a string or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _read(file: Path) -> bytes:
    if not file.is_file():
        raise CheckpointError(_no_tokenizer_message(file))
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise CheckpointError(f"{file} has {size} bytes; a tokenizer may have at most {MAX_FILE_BYTES}")
    return file.read_bytes()


def _read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`, {} if there is no such file."""
    return read_json_file(file, MAX_JSON_BYTES) if file.is_file() else {}
