"""Writes the prompts of a load as JSON: token ids, text, or messages.

Everything that is known before a run is rendered before it, piece by piece; while it runs pieces are only joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from kvist.bench.text_codec import TextCodec
from kvist.workload.text_source import TextSource, read_sentences
from kvist.workload.trace_record import AnswerPart, TextPart, TraceRecord


class PromptForm(StrEnum):
    """TOKENS keeps lengths exact. TEXT goes through the server's tokenizer, as users' prompts do."""

    TOKENS = "tokens"
    TEXT = "text"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said, for a prompt that continues it."""

    text: str
    token_ids: Sequence[int]


Answers = Callable[[int], Answer]  # by the index of the request


class PromptWriter:
    """Prompts of one form. A system message is the part that begins a conversation, where another text follows it."""

    def __init__(self, codec: TextCodec, form: PromptForm) -> None:
        self.form = form
        self.codec = codec
        self._source = TextSource(codec.encode, read_sentences())
        self._pieces: dict[tuple[str, int, int], bytes] = {}

    @property
    def field(self) -> str:
        """The body's field that takes the prompt."""
        return "messages" if self.form is PromptForm.MESSAGES else "prompt"

    def prepare(self, records: Iterable[TraceRecord]) -> None:
        """Render all their texts."""
        for record in records:
            for part in record.prompt:
                if isinstance(part, TextPart):
                    self._piece(part)

    def write(self, record: TraceRecord, answers: Answers) -> bytes:
        """The prompt as a JSON value. answers: of the requests that it continues."""
        if self.form is PromptForm.MESSAGES:
            return b"[" + b",".join(self._messages(record, answers)) + b"]"
        pieces = [
            self._piece(part) if isinstance(part, TextPart) else self._render_answer(answers(part.index))
            for part in record.prompt
        ]
        if self.form is PromptForm.TOKENS:
            return b"[" + b",".join(piece for piece in pieces if piece) + b"]"
        return b'"' + b"".join(pieces) + b'"'

    def _messages(self, record: TraceRecord, answers: Answers) -> Iterator[bytes]:
        user: list[bytes] = []
        for place, part in enumerate(record.prompt):
            if isinstance(part, AnswerPart):
                if user:
                    yield _message("user", user)
                    user = []
                yield _message("assistant", [_escaped(answers(part.index).text)])
                continue
            if place == 0 and len(record.prompt) > 1 and isinstance(record.prompt[1], TextPart):
                yield _message("system", [self._piece(part)])
                continue
            user.append(self._piece(part))
        yield _message("user", user)

    def _piece(self, part: TextPart) -> bytes:
        key = (part.text_id, part.start, part.num_tokens)
        piece = self._pieces.get(key)
        if piece is None:
            tokens = self._source.tokens(part)
            piece = _numbers(tokens) if self.form is PromptForm.TOKENS else _escaped(self.codec.decode(tokens))
            self._pieces[key] = piece
        return piece

    def _render_answer(self, answer: Answer) -> bytes:
        return _numbers(answer.token_ids) if self.form is PromptForm.TOKENS else _escaped(answer.text)


def _numbers(tokens: Sequence[int]) -> bytes:
    return b",".join(b"%d" % token for token in tokens)


def _escaped(text: str) -> bytes:
    """As inside a JSON string."""
    return msgspec.json.encode(text)[1:-1]


def _message(role: str, pieces: Sequence[bytes]) -> bytes:
    return b'{"role":"%s","content":"%s"}' % (role.encode(), b"".join(pieces))
