"""One request of a load, as data: when it comes, what its prompt is made of, how long its answer is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class TextPart(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Tokens [start, start + num_tokens) of the endless text named `text_id`. Equal names are equal text."""

    text_id: str
    start: int
    num_tokens: int


class AnswerPart(msgspec.Struct, frozen=True, gc=False, tag="answer"):
    """The output of another request of the load, as the model gave it."""

    index: int


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A request. `index` is its place in the load.

    arrival_s: after the start of the load or, where `after` names a request, after that one's end.
    num_output_tokens: asked for, with ignore_eos.
    """

    index: int
    arrival_s: float
    prompt: tuple[TextPart | AnswerPart, ...]
    num_output_tokens: int
    after: int | None = None
    n: int = 1
    session_id: str | None = None


def count_prompt_tokens(records: Sequence[TraceRecord]) -> list[int]:
    """Prompt length of each record, answers at their asked-for length."""
    return [
        sum(
            part.num_tokens if isinstance(part, TextPart) else records[part.index].num_output_tokens
            for part in record.prompt
        )
        for record in records
    ]
