"""Turns the named texts of a load into tokens: real sentences, in an order that the name decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files

from kvist.workload.random_stream import RandomStream
from kvist.workload.trace_record import TextPart, TraceRecord

Encode = Callable[[str], Sequence[int]]


def read_sentences() -> list[str]:
    """The sentences that ship with kvist, of a book in the public domain (see NOTICE)."""
    return files("kvist.workload").joinpath("alice.txt").read_text(encoding="utf-8").splitlines()


class TextSource:
    """Endless texts by name, as tokens.

    encode: text -> token ids, without special tokens. Texts of different names start with different numbers, so that
    they share no block of tokens with each other except by chance inside.
    """

    def __init__(self, encode: Encode, sentences: Sequence[str]) -> None:
        self._encode = encode
        self._sentences = sentences
        self._encoded: dict[int, Sequence[int]] = {}
        self._texts: dict[str, tuple[RandomStream, list[int]]] = {}

    def tokens(self, part: TextPart) -> list[int]:
        """The part's tokens, as many as it asks for."""
        end = part.start + part.num_tokens
        if part.text_id not in self._texts:
            stream = RandomStream(0, part.text_id)
            # 52 random bits: the first tokens tell texts apart. A drawn number, not a count: names need no order.
            self._texts[part.text_id] = (stream, list(self._encode(f"{int(stream.uniform() * 2**52)}. ")))
        stream, tokens = self._texts[part.text_id]
        while len(tokens) < end:
            tokens.extend(self._sentence(stream.integer(0, len(self._sentences) - 1)))
        return tokens[part.start : end]

    def prompt(self, record: TraceRecord, answers: Callable[[int], Sequence[int]]) -> list[int]:
        """The record's prompt. answers: index of an earlier request -> the tokens that it was answered with."""
        prompt: list[int] = []
        for part in record.prompt:
            prompt.extend(self.tokens(part) if isinstance(part, TextPart) else answers(part.index))
        return prompt

    def _sentence(self, index: int) -> Sequence[int]:
        if index not in self._encoded:
            self._encoded[index] = self._encode(self._sentences[index] + " ")
        return self._encoded[index]
