"""Makes token ids for a load's named texts: equal names are equal tokens, different names differ in their first one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from kvist.kvcache.token_blocks import TOKEN_BYTES
from kvist.workload.trace_record import TextPart, TraceRecord

FIRST_ANSWER_TOKEN = 1 << 30  # answers and texts share no tokens
NUM_ANSWER_TOKENS = 1 << 29
TEXT_STRIDE = 8_191

# Whole pieces of a text are made as one long number, 32 bits a token: adding is many times faster than a loop.
PIECE_TOKENS = 512
_RAMP = int.from_bytes(array("i", range(PIECE_TOKENS)).tobytes(), "little")
_ONES = int.from_bytes(array("i", (1,) * PIECE_TOKENS).tobytes(), "little")


def answer_token(index: int) -> int:
    """The one token that a simulated answer of request `index` consists of."""
    return FIRST_ANSWER_TOKEN + index % NUM_ANSWER_TOKENS


def rising_tokens(first: int, num_tokens: int) -> Iterator[bytes]:
    """Tokens first, first + 1, ..., packed, in pieces. All are below 2^31."""
    for start in range(0, num_tokens, PIECE_TOKENS):
        piece = (_RAMP + (first + start) * _ONES).to_bytes(PIECE_TOKENS * TOKEN_BYTES, "little")
        yield piece[: (num_tokens - start) * TOKEN_BYTES]


class TracePrompts:
    """Prompts of a load, made when asked for: a long trace's tokens together would not fit into memory.

    Token j of text number t is t x stride + j (modulo 2^30): two texts agree at no place that both start from.
    """

    def __init__(self, records: Sequence[TraceRecord]) -> None:
        self._records = records
        self._numbers: dict[str, int] = {}

    def prompt(self, record: TraceRecord) -> bytes:
        """The record's prompt, packed; answers of earlier requests at their asked-for length."""
        parts: list[bytes] = []
        for part in record.prompt:
            if isinstance(part, TextPart):
                number = self._numbers.setdefault(part.text_id, len(self._numbers))
                first = (number * TEXT_STRIDE) % (FIRST_ANSWER_TOKEN >> 1) + part.start
                parts += rising_tokens(first, part.num_tokens)
            else:
                num_tokens = self._records[part.index].num_output_tokens
                parts.append(array("i", (answer_token(part.index),)).tobytes() * num_tokens)
        return b"".join(parts)
