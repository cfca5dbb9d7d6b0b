"""Builds a tokenizer from the `tokenizer.ggml.*` metadata of a GGUF file. Reads no files itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.tokenization.byte_alphabet import BYTE_TOKEN, SPACE_MARK
from kvist.tokenization.gguf_pre_tokenizers import PRE_TOKENIZER_RULES, PreTokenizerRule
from kvist.tokenization.library_errors import checkpoint_errors
from kvist.tokenization.tokenizer import TokenizerTraits

# Tokens that end a turn or a text whatever else the metadata names; many files list only one of several.
END_OF_GENERATION_TEXTS = frozenset(
    {
        "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",
        "<|EOT|>", "<EOT>", "<｜end▁of▁sentence｜>",
    }
)  # fmt: skip
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NAMED_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # spelt so in the format
}


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GGUFVocabulary:
    """The tokenizer part of GGUF metadata, checked. Raises CheckpointError or UnsupportedModelError on creation."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.model: str = self._get("model", str, None)
        if self.model not in ("gpt2", "llama"):
            raise UnsupportedModelError(
                f"tokenizer.ggml.model is {self.model!r}; kvist reads gpt2 (byte-level BPE) and llama (SentencePiece). "
                "Give --tokenizer a tokenizer.json instead."
            )
        self.tokens: Sequence[str] = self._get("tokens", list, None)
        if set(map(type, self.tokens)) != {str}:
            raise CheckpointError("tokenizer.ggml.tokens must be a list of strings with at least one entry")
        self.types: Sequence[int] = self._get("token_type", list, [TokenType.NORMAL] * len(self.tokens))
        if len(self.types) != len(self.tokens):
            raise CheckpointError(f"{len(self.types)} tokenizer.ggml.token_type entries for {len(self.tokens)} tokens")
        # Of tokens written alike the first one counts; the others stand for no text.
        self.ids = dict(zip(reversed(self.tokens), range(len(self.tokens) - 1, -1, -1), strict=True))

    @property
    def byte_level(self) -> bool:
        return self.model == "gpt2"

    @property
    def rule(self) -> PreTokenizerRule:
        """The pre-tokenizer of a byte-level BPE. Raises UnsupportedModelError for one that is not known."""
        name = self._metadata.get("tokenizer.ggml.pre")
        rule = PRE_TOKENIZER_RULES.get(name) if isinstance(name, str) else None
        if rule is not None:
            return rule
        near = difflib.get_close_matches(str(name), PRE_TOKENIZER_RULES, n=1)
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre is {name!r}"
            + (f" (nearest: {near[0]})" if near else "")
            + f"; known are {', '.join(sorted(PRE_TOKENIZER_RULES))}. A wrong one gives wrong tokens, so none is "
            "guessed: give --tokenizer the model's tokenizer.json."
        )

    @property
    def has_merges(self) -> bool:
        """Whether the file lists merges. SentencePiece files as a rule have scores alone, from which they follow."""
        return "tokenizer.ggml.merges" in self._metadata

    @property
    def merges(self) -> list[tuple[str, str]]:
        merges: list[str] = self._get("merges", list, None)
        if not set(map(type, merges)) <= {str}:
            raise CheckpointError("tokenizer.ggml.merges must be a list of strings")
        ids, tokens = self.ids, self.tokens
        pairs: list[tuple[str, str]] = []
        for merge in merges:
            left, _, right = merge.partition(" ")
            # Pieces are tokens: two strings of their own for each merge would take more memory than the vocabulary.
            pairs.append((tokens[ids[left]] if left in ids else left, tokens[ids[right]] if right in ids else right))
        if not all(left and right for left, right in pairs):
            raise CheckpointError("each of tokenizer.ggml.merges must be two pieces and a space between them")
        return pairs

    @property
    def scores(self) -> list[float]:
        scores: list[float] = self._get("scores", list, None)
        if len(scores) != len(self.tokens):
            raise CheckpointError(f"{len(scores)} tokenizer.ggml.scores for {len(self.tokens)} tokens")
        return scores

    @property
    def adds_leading_space(self) -> bool:
        return not self.byte_level and self._flag("add_space_prefix", default=True)

    def with_type(self, *types: TokenType) -> list[str]:
        """Return the tokens of these types, by id."""
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]

    def traits(self) -> TokenizerTraits:
        """Derive what encoding and decoding must know besides the vocabulary."""
        bos, eos = self._id("bos_token_id"), self._id("eos_token_id")
        add_bos = self._flag("add_bos_token", default=not self.byte_level or self.rule.adds_bos)
        add_eos = self._flag("add_eos_token", default=False)
        ends = [index for key in _END_KEYS if (index := self._id(key)) is not None]
        markup = self.with_type(TokenType.CONTROL, TokenType.USER_DEFINED)  # some converters write these as the latter
        ends += [self.ids[text] for text in markup if text in END_OF_GENERATION_TEXTS]
        named = {name: index for name, key in _NAMED_KEYS.items() if (index := self._id(key)) is not None}
        return TokenizerTraits(
            vocab_size=len(self.tokens),
            byte_level=self.byte_level,
            adds_leading_space=self.adds_leading_space,
            prefix_ids=(bos,) if add_bos and bos is not None else (),
            suffix_ids=(eos,) if add_eos and eos is not None else (),
            bos_token_id=bos,
            eos_token_ids=tuple(dict.fromkeys(ends)),
            named_tokens={name: self.tokens[index] for name, index in named.items()},
        )

    def _id(self, key: str) -> int | None:
        index: int | None = self._metadata.get(f"tokenizer.ggml.{key}")
        if index is None or index == 2**32 - 1:  # "none" as some converters write it
            return None
        if not isinstance(index, int) or not 0 <= index < len(self.tokens):
            raise CheckpointError(f"tokenizer.ggml.{key} is {index!r}, but there are {len(self.tokens)} tokens")
        return index

    def _flag(self, key: str, *, default: bool) -> bool:
        flag: bool = self._get(key, bool, default)
        return flag

    def _get(self, key: str, kind: type, default: Any) -> Any:  # Any: metadata is typed by the file
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if value is None:
            raise CheckpointError(f"the file has no tokenizer.ggml.{key}; give --tokenizer the model's tokenizer.json")
        if not isinstance(value, kind):
            raise CheckpointError(f"tokenizer.ggml.{key} must be of type {kind.__name__}, not {type(value).__name__}")
        return value


def build_gguf_backend(vocabulary: GGUFVocabulary) -> Backend:
    """Build the library tokenizer of a GGUF vocabulary. Raises CheckpointError if its parts do not fit together."""
    with checkpoint_errors("the tokenizer metadata does not make a tokenizer"):
        backend = _byte_level_bpe(vocabulary) if vocabulary.byte_level else _sentencepiece_bpe(vocabulary)
        special = vocabulary.with_type(TokenType.CONTROL, TokenType.UNKNOWN)
        backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special if text])
        # SentencePiece looks for user-defined pieces in normalized text, so that runs of spaces match. With a space
        # put before each text that normalization would change the piece itself.
        normalized = not vocabulary.byte_level and not vocabulary.adds_leading_space
        user_defined = vocabulary.with_type(TokenType.USER_DEFINED)
        backend.add_tokens([AddedToken(text, normalized=normalized, special=False) for text in user_defined if text])
    return backend


def _byte_level_bpe(vocabulary: GGUFVocabulary) -> Backend:
    rule = vocabulary.rule
    backend = Backend(models.BPE(vocabulary.ids, vocabulary.merges, ignore_merges=rule.ignore_merges))
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(vocabulary: GGUFVocabulary) -> Backend:
    unknown = next(iter(vocabulary.with_type(TokenType.UNKNOWN)), None)
    has_bytes = any(BYTE_TOKEN.fullmatch(token) for token in vocabulary.with_type(TokenType.BYTE))
    backend = Backend(
        models.BPE(
            vocabulary.ids,
            # Files made from a tokenizer.json have both; their scores may be one placeholder for all.
            vocabulary.merges if vocabulary.has_merges else derive_merges(vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    )
    spaces = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces]) if vocabulary.adds_leading_space else spaces
    )
    return backend


def derive_merges(vocabulary: GGUFVocabulary) -> list[tuple[str, str]]:
    """Return merges that do what SentencePiece's scores do: join the neighbours whose joint piece scores best."""
    ids, tokens, types, scores = vocabulary.ids, vocabulary.tokens, vocabulary.types, vocabulary.scores
    best_first = sorted(
        (index for index, kind in enumerate(types) if kind == TokenType.NORMAL and len(tokens[index]) > 1),
        key=lambda index: -scores[index],
    )
    merges: list[tuple[str, str]] = []
    for index in best_first:
        piece = tokens[index]
        cuts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        pairs = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        merges += sorted(pairs, key=lambda pair: ids[pair[0]]) if len(pairs) > 1 else pairs
    return merges
