"""Reads one streamed answer: when its tokens came and how many they were. Chunks are never counted as tokens.

What tells how many tokens a chunk holds, the best that the server offers (see TokenCount): its token ids; the running
count in each chunk (`continuous_usage_stats`; llama-server's `timings`); or nothing but the total, which is then spread
over the chunks by their share of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Annotated, Any

import msgspec

from kvist.metrics.served_request import Delivery


class TokenCount(StrEnum):
    """How tokens were counted, best first."""

    IDS = "token ids in each chunk"
    RUNNING = "running count in each chunk"
    TOTAL = "total of the answer, spread over its chunks by their text"
    TEXT = "text tokenized again, spread over its chunks by their text"
    NONE = "not at all"


class StreamError(Exception):
    """The stream carried an error in place of an answer, or ended before its answer did."""


MAX_EVENT_BYTES = 1 << 24
MAX_ANSWER_BYTES = 1 << 28  # a server that never stops would fill this process's memory
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]  # of tokens: more is no answer's


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, gc=False):
    index: Annotated[int, msgspec.Meta(ge=0)] = 0
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class _Timings(msgspec.Struct, gc=False):
    predicted_n: Count | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: Usage | None = None
    timings: _Timings | None = None
    error: Any = None  # of any shape
    message: Any = None  # an error without an envelope


class Sample:
    """One of the answer's samples. `pieces`: (time, text, tokens if the chunk tells) of each chunk with some."""

    __slots__ = ("finish_reason", "num_told", "pieces", "token_ids")

    def __init__(self) -> None:
        self.pieces: list[tuple[float, str, int | None]] = []
        self.token_ids: list[int] = []
        self.num_told = 0  # tokens so far, of a running count
        self.finish_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(text for _, text, _ in self.pieces)

    @property
    def tells_counts(self) -> bool:
        """Whether every chunk told its count. llama-server's last always does, which says nothing of the rest."""
        return bool(self.pieces) and all(count is not None for _, _, count in self.pieces)


class AnswerReader:
    """Fed with a stream's bytes; afterwards it knows the answer."""

    def __init__(self, num_samples: int = 1) -> None:
        self.samples = [Sample() for _ in range(num_samples)]
        self.usage: Usage | None = None
        self.num_chunks = 0
        self._num_bytes = 0
        self._rest = b""
        self._is_done = False

    def feed(self, time_s: float, data: bytes) -> None:
        """Take bytes that came at `time_s`. Raises StreamError for an error event and for what is no such stream."""
        self._num_bytes += len(data)
        if self._num_bytes > MAX_ANSWER_BYTES:
            raise StreamError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        events = data.split(b"\n\n")
        self._rest = events.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise StreamError(f"an event of the stream has more than {MAX_EVENT_BYTES} bytes")
        for event in events:
            self._take_event(time_s, event)

    def finish(self) -> None:
        """Raises StreamError if the stream ended without having said that the answer is complete."""
        for sample in self.samples:
            if sample.finish_reason is None and not (self._is_done and sample.pieces):
                raise StreamError("the stream ended before the answer did")

    def _take_event(self, time_s: float, event: bytes) -> None:
        if event.startswith(b"data: ") and b"\n" not in event:
            payload: bytes | None = event[6:]
        else:
            payload = _data_of(event)
        if payload is None:
            return
        if payload == b"[DONE]":
            self._is_done = True
            return
        try:
            chunk = _decode(payload)
        except msgspec.MsgspecError as error:
            raise StreamError(f"no chunk of an answer: {payload[:200]!r} ({error})") from error
        if chunk.error is not None or (chunk.message is not None and not chunk.choices):
            raise StreamError(f"the server says: {error_message(chunk.error or chunk.message)}")
        self.num_chunks += 1
        if chunk.usage is not None:
            self.usage = chunk.usage
        # A running count of several samples together belongs to none of them.
        running = _running_count(chunk) if len(self.samples) == 1 else None
        for choice in chunk.choices:
            self._take_choice(time_s, choice, running)

    def _take_choice(self, time_s: float, choice: _Choice, running: int | None) -> None:
        if choice.index >= len(self.samples):
            raise StreamError(f"a sample of index {choice.index} was not asked for")
        sample = self.samples[choice.index]
        text = choice.text
        if text is None and choice.delta is not None:
            text = choice.delta.content or choice.delta.reasoning_content
        count = None
        if choice.token_ids is not None:
            count = len(choice.token_ids)
            sample.token_ids += choice.token_ids
        elif running is not None:
            count, sample.num_told = max(running - sample.num_told, 0), max(running, sample.num_told)
        if text or count:
            sample.pieces.append((time_s, text or "", count))
        if choice.finish_reason is not None:
            sample.finish_reason = choice.finish_reason


_decode = msgspec.json.Decoder(_Chunk).decode


def _running_count(chunk: _Chunk) -> int | None:
    if chunk.timings is not None:
        return chunk.timings.predicted_n
    return chunk.usage.completion_tokens if chunk.usage is not None and chunk.choices else None


def _data_of(event: bytes) -> bytes | None:
    """The data of an event that is not one plain line; None if it has none, as a comment."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def error_message(error: Any) -> str:  # Any: servers differ in the shape
    if isinstance(error, dict):
        inner = error.get("message", error.get("error", error))
        return error_message(inner) if isinstance(inner, dict) and inner is not error else str(inner)
    return str(error)


def deliveries(sample: Sample, num_tokens: int) -> list[Delivery]:
    """(time, tokens) of a sample that has `num_tokens` in all.

    Where chunks tell their own counts, tokens that none told (an end of sequence without text) came with the last.
    Where they tell nothing, the total is spread over them by their share of the text, so that the sum is exact.
    """
    if sample.tells_counts:
        counted = [(time_s, count) for time_s, _, count in sample.pieces if count]
        missing = num_tokens - sum(count for _, count in counted)
        if missing > 0 and counted:
            counted[-1] = (counted[-1][0], counted[-1][1] + missing)
        return counted
    return _spread(sample.pieces, num_tokens)


def _spread(pieces: Sequence[tuple[float, str, int | None]], num_tokens: int) -> list[Delivery]:
    lengths = list(accumulate(len(text) for _, text, _ in pieces))
    if not lengths or lengths[-1] == 0:  # nothing to go by: they are there at the end
        return [(pieces[-1][0], num_tokens)] if pieces and num_tokens else []
    ends = [round(num_tokens * length / lengths[-1]) for length in lengths]
    ends[0] = max(ends[0], min(1, num_tokens))  # the first text is at least a token
    counted, before = [], 0
    for (time_s, _, _), end in zip(pieces, ends, strict=True):
        if end > before:
            counted.append((time_s, end - before))
            before = end
    return counted
