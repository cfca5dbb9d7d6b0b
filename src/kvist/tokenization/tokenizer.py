"""Text to token ids and back. Owns the vocabulary as bytes; knows nothing of where the tokenizer came from."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import tokenizers

from kvist.tokenization.byte_alphabet import BYTE_OF_CHARACTER, BYTE_TOKEN, SPACE_MARK
from kvist.tokenization.library_errors import request_errors

_MOST_CHARACTERS_COMPOSED = 4  # into one, by Unicode's normal form C


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerTraits:
    """What the vocabulary file does not say but encoding and decoding must know.

    vocab_size: one more than the largest id.
    byte_level: pieces are written in the byte-level BPE alphabet; otherwise as SentencePiece writes them.
    adds_leading_space: encoding puts a space before a text, decoding takes it away again.
    prefix_ids, suffix_ids: what `add_special_tokens` puts around a text, such as BOS.
    eos_token_ids: every token that ends a generation (end of text, of turn, of message).
    named_tokens: "bos_token" and the like with their text, as chat templates use them.
    """

    vocab_size: int
    byte_level: bool
    adds_leading_space: bool = False
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    named_tokens: Mapping[str, str] = field(default_factory=dict)


class Tokenizer:
    """Encodes and decodes. Thread-safe; a long `encode` runs without the interpreter lock."""

    def __init__(self, backend: tokenizers.Tokenizer, traits: TokenizerTraits) -> None:
        self.traits = traits
        self._backend = backend
        self._literal_backend: tokenizers.Tokenizer | None = None
        self._added = {int(index): token for index, token in backend.get_added_tokens_decoder().items()}
        self._bytes: dict[int, bytes] = {}
        self.whole_texts: dict[int, str] = {}  # of tokens that are whole characters; filled as tokens are decoded
        self.special_token_ids = frozenset(index for index, token in self._added.items() if token.special)
        self.special_token_texts = frozenset(token.content for token in self._added.values() if token.special)

    @property
    def vocab_size(self) -> int:
        return self.traits.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self.traits.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.traits.eos_token_ids

    @property
    def adds_leading_space(self) -> bool:
        return self.traits.adds_leading_space

    @cached_property
    def max_token_characters(self) -> int:
        """Upper bound of the characters of text in one token, those that normalization joins included."""
        longest = max((len(piece) for piece in self._backend.get_vocab(with_added_tokens=True)), default=1)
        return _MOST_CHARACTERS_COMPOSED * longest

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token: markup that text cannot contain, such as BOS or end of turn."""
        return token_id in self.special_token_ids

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that is written exactly so in the vocabulary, or None."""
        return self._backend.token_to_id(text)

    def num_special_tokens_to_add(self) -> int:
        """Count the tokens that `encode` adds to a text when `add_special_tokens` is set."""
        return len(self.traits.prefix_ids) + len(self.traits.suffix_ids)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Return the token ids of `text`.

        add_special_tokens: add what the model expects around a text, say BOS, unless the text starts with it.
        parse_special: `<|im_end|>` in the text becomes that control token; otherwise it is ordinary text.
        Raises InvalidRequestError for text that is not Unicode (lone surrogates).
        """
        ids = self._encode_plain(self._backend, text)
        if not parse_special and not self.special_token_ids.isdisjoint(ids):
            ids = self._encode_plain(self._literal(), text)
        return self.with_special_tokens(ids) if add_special_tokens else ids

    def starts_text_after(self, token_ids: Sequence[int]) -> bool:
        """Whether what follows `token_ids` begins a text of its own, whose leading space encoding would add again."""
        return self.adds_leading_space and (not token_ids or token_ids[-1] in self.special_token_ids)

    def with_special_tokens(self, ids: list[int]) -> list[int]:
        """Return `ids` with what the model expects around a text; nothing is put before ids that start with it."""
        prefix = list(self.traits.prefix_ids)
        if prefix and ids[: len(prefix)] == prefix:
            prefix = []
        return [*prefix, *ids, *self.traits.suffix_ids]

    @staticmethod
    def _encode_plain(backend: tokenizers.Tokenizer, text: str) -> list[int]:
        with request_errors():
            # Of the library's ways to encode, this one releases the interpreter lock and computes no offsets.
            encoding = backend.encode_batch_fast([text], add_special_tokens=False)[0]
        ids: list[int] = encoding.ids
        return ids

    def _literal(self) -> tokenizers.Tokenizer:
        """The same tokenizer, but blind to control tokens. Made on first use: hardly any text needs it."""
        if self._literal_backend is None:
            literal = tokenizers.Tokenizer.from_str(self._backend.to_str())
            literal.encode_special_tokens = True
            self._literal_backend = literal
        return self._literal_backend

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, strip_leading_space: bool = True
    ) -> str:
        """Return the text of `token_ids`; bytes that are no UTF-8 become U+FFFD.

        strip_leading_space: drop the space that SentencePiece put before the text. Not for the continuation of a text.
        """
        skip = self.special_token_ids if skip_special_tokens else frozenset()
        joined = b"".join([self.token_bytes(index) for index in token_ids if index not in skip])
        if strip_leading_space and self.adds_leading_space:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", errors="replace")

    def raw_token(self, token_id: int) -> str | None:
        """Return a token as the vocabulary spells it, None for an id without one."""
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes a token stands for; b"" for an id outside the vocabulary."""
        known = self._bytes.get(token_id)
        if known is not None:
            return known
        piece = self._compute_bytes(token_id)
        self._bytes[token_id] = piece
        with contextlib.suppress(UnicodeDecodeError):  # part of a character: its text depends on its neighbours
            self.whole_texts[token_id] = piece.decode("utf-8")
        return piece

    def token_text(self, token_id: int) -> str:
        """Return a token's text as clients see it in logprobs; U+FFFD for bytes that are no whole character."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def _compute_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            text: str = added.content
            is_markup = added.special or self.traits.byte_level
            return (text if is_markup else text.replace(SPACE_MARK, " ")).encode()
        if not 0 <= token_id < self.vocab_size:
            return b""
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if self.traits.byte_level:
            try:
                return bytes([BYTE_OF_CHARACTER[character] for character in piece])
            except KeyError:
                return piece.encode()  # a token that was put into the vocabulary as plain text
        byte = BYTE_TOKEN.fullmatch(piece)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return piece.replace(SPACE_MARK, " ").encode()
