"""Small tokenizer metadata as GGUF files carry it: byte-level BPE with merges, SentencePiece with scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvist.tokenization.byte_alphabet import CHARACTER_OF_BYTE, SPACE_MARK

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level_metadata(
    merges: Sequence[tuple[str, str]] = (),
    *,
    pre: str = "smollm",
    control: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    user_defined: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """Control tokens first, then all bytes, then one token per merge (in the byte alphabet), then user-defined ones."""
    pieces = [CHARACTER_OF_BYTE[byte] for byte in range(256)]
    for left, right in merges:
        if left + right not in pieces:
            pieces.append(left + right)
    types = [CONTROL] * len(control) + [NORMAL] * len(pieces) + [USER_DEFINED] * len(user_defined)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*control, *pieces, *user_defined],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def sentencepiece_metadata(
    scored: Sequence[tuple[str, float]] = (),
    *,
    characters: str = "abcdehlotwxyz.,!" + SPACE_MARK,
    control: Sequence[str] = ("<s>", "</s>", "[INST]", "[/INST]"),
    user_defined: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """<unk>, control tokens, the 256 byte tokens, single characters (worst scores), then `scored` pieces."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [piece for piece, _ in scored]
    types = (
        [UNKNOWN]
        + [CONTROL] * len(control)
        + [BYTE] * 256
        + [NORMAL] * (len(characters) + len(pieces))
        + [USER_DEFINED] * len(user_defined)
    )
    scores = [0.0] * (1 + len(control) + 256) + [-1e6 - i for i in range(len(characters))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": ["<unk>", *control, *byte_tokens, *characters, *pieces, *user_defined],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores + [score for _, score in scored] + [0.0] * len(user_defined),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}
