"""A byte-level BPE tokenizer of a few hundred tokens, made in code, for random models.

Any text encodes; common words are one token. Written in both forms that checkpoints use.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|bos|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID = 1, 3

_WORDS = (
    " the of to and in is that it for was on with you are be this have from or not but what all were when we there can"
    " an your which their said if will each about how up out them then she he many some so these would other into has"
    " more her two like him see time could no make than first been its who now people my made over did down only way"
    " find use may water long little very after words called just where most know"
    " der die und ist nicht ein das mit le la les des est que pour el los por una como"
    " def return import for class self None True"
)
_PIECES = (
    *("ing", "tion", "er", "ed", "ly", "es", "en", "ment", "ness", "able", "sch", "ich", "ung", "ent", "que", "ar"),
    *("  ", "    ", "()", "==", "://", "\n\n", "...", "é", "ü", "ä", "ö", "ß", "ñ", "的", "。", "の", "😀", "п", "о"),
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _byte_alphabet() -> list[str]:
    """One printable character for each byte, as byte-level BPE has it: itself, or one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _join(pieces: list[str], left: str, right: str) -> list[str]:
    joined: list[str] = []
    for piece in pieces:
        if joined and joined[-1] == left and piece == right:
            joined[-1] = left + right
        else:
            joined.append(piece)
    return joined


def tiny_vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    """Return tokens in order of id, and merges in order of rank. Always the same."""
    alphabet = _byte_alphabet()
    merges: list[tuple[str, str]] = []
    for text in [" " + word for word in _WORDS.split()] + list(_PIECES):
        pieces = [alphabet[byte] for byte in text.encode()]
        for left, right in merges:
            pieces = _join(pieces, left, right)
        while len(pieces) > 1:  # make the rest of the text one token, from the left
            merges.append((pieces[0], pieces[1]))
            pieces = _join(pieces, pieces[0], pieces[1])
    return [*SPECIAL_TOKENS, *alphabet, *(left + right for left, right in merges)], merges


def _fill_up(tokens: list[str], vocab_size: int) -> list[str]:
    """Append made-up words up to `vocab_size`: no text encodes to them, but a model that emits them gives text."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ("Ġ" + first + second + third for first in syllables for second in syllables for third in syllables)
    taken = set(tokens)
    new_words = (word for word in words if word not in taken)
    return tokens + list(islice(new_words, vocab_size - len(tokens)))


def gguf_tokenizer(vocab_size: int, *, add_bos: bool) -> dict[str, Any]:
    """Return the tokenizer's GGUF key-values."""
    tokens, merges = tiny_vocabulary()
    num_normal = vocab_size - len(SPECIAL_TOKENS)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": _fill_up(tokens, vocab_size),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL_TOKENS) + [1] * num_normal,  # 3 control, 1 normal
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": add_bos,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def hf_tokenizer(vocab_size: int, *, add_bos: bool) -> dict[str, dict[str, Any]]:
    """Return the tokenizer's Hugging Face files: name -> JSON."""
    tokens, merges = tiny_vocabulary()
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bos = SPECIAL_TOKENS[BOS_ID]
    with_bos = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {bos: {"id": bos, "ids": [BOS_ID], "tokens": [bos]}},
    }  # fmt: skip
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {token: index for index, token in enumerate(_fill_up(tokens, vocab_size))},
        "merges": [list(pair) for pair in merges],
    }  # fmt: skip
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": index, "content": text} | special for index, text in enumerate(SPECIAL_TOKENS)],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": with_bos if add_bos else None,
            "decoder": byte_level,
            "model": model,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": bos,
            "eos_token": SPECIAL_TOKENS[EOS_ID],
            "pad_token": SPECIAL_TOKENS[0],
            "add_bos_token": add_bos,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
        "generation_config.json": {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": 0},
    }
