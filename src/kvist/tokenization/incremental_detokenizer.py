"""Turns one request's output tokens into text as they come. Knows bytes and UTF-8; nothing of stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from kvist.tokenization.tokenizer import Tokenizer

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Text of a growing token sequence, O(1) amortised a token.

    The deltas and `finish` joined equal `tokenizer.decode` of all tokens, however the tokens were split. Bytes that may
    still become a character are held back, at most three; bytes that cannot become one turn into U+FFFD at once.

    strip_leading_space: drop the one space that SentencePiece puts before a text, as `decode` does. Right for a text of
    its own (`Tokenizer.starts_text_after` the prompt), wrong for the continuation of a text.
    """

    __slots__ = ("_at_start", "_decoder", "_has_pending_bytes", "_skip_ids", "_texts", "_tokenizer")

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, strip_leading_space: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = tokenizer.whole_texts
        self._skip_ids: frozenset[int] = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._at_start = strip_leading_space and tokenizer.adds_leading_space
        self._decoder = _new_utf8_decoder(errors="replace")
        self._has_pending_bytes = False

    def append(self, token_id: int) -> str:
        """Take one token and return the text that is now certain; maybe empty."""
        if token_id in self._skip_ids:
            return ""
        if not self._has_pending_bytes and not self._at_start:
            text = self._texts.get(token_id)
            if text is not None:
                return text
        return self._append_bytes(token_id)

    def extend(self, token_ids: Iterable[int]) -> str:
        """Take several tokens and return the text that is now certain."""
        return "".join([self.append(token_id) for token_id in token_ids])

    def finish(self) -> str:
        """Return what is left when no token follows: U+FFFD for an incomplete character, or nothing."""
        self._has_pending_bytes = False
        return self._decoder.decode(b"", final=True)

    def _append_bytes(self, token_id: int) -> str:
        piece = self._tokenizer.token_bytes(token_id)
        if self._at_start and piece:
            self._at_start = False
            piece = piece.removeprefix(b" ")
        text = self._decoder.decode(piece)
        self._has_pending_bytes = bool(self._decoder.getstate()[0])
        return text
