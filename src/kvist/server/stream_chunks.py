"""Writes the chunks of a streamed answer. The hot path of the server: only text is encoded per token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvist.core.request import FinishReason
from kvist.runtime.generation_types import SampleDelta, Usage
from kvist.server.answer_shapes import usage_shape

_encode = msgspec.json.Encoder().encode
_FINISH = {reason: f'"{reason.value}"'.encode() for reason in FinishReason}


class ChunkWriter:
    """Chunks of one call. `head`: the fields that all of them share. text_field: where a choice keeps its text.

    usage_null: every chunk says `"usage":null`, because the last one will carry it.
    """

    def __init__(self, head: Mapping[str, Any], *, is_chat: bool, usage_null: bool) -> None:
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._before_text = b',"delta":{"content":' if is_chat else b',"text":'
        self._after_text = b'},"logprobs":' if is_chat else b',"logprobs":'
        self._end = b'],"usage":null}\n\n' if usage_null else b"]}\n\n"
        self._starts: dict[int, bytes] = {}

    def _start(self, index: int) -> bytes:
        start = self._starts.get(index)
        if start is None:
            start = self._starts[index] = self._head + b'{"index":%d' % index + self._before_text
        return start

    def delta(
        self,
        index: int,
        delta: SampleDelta,
        *,
        logprobs: Mapping[str, Any] | None = None,
        with_token_ids: bool = False,
        usage: Usage | None = None,
    ) -> bytes:
        """One chunk with what the sample gained. usage: so far, for clients that ask for it in every chunk."""
        parts = [self._start(index), _encode(delta.text), self._after_text]
        parts.append(b"null" if logprobs is None else _encode(logprobs))
        if delta.finish_reason is None:
            parts.append(b',"finish_reason":null')
        else:
            parts += (
                b',"finish_reason":',
                _FINISH[delta.finish_reason],
                b',"stop_reason":',
                _encode(delta.stop_reason),
            )
        if with_token_ids:
            parts += (b',"token_ids":', _encode(delta.token_ids))
        parts += (b"}", self._end if usage is None else self._usage_end(usage))
        return b"".join(parts)

    def opening(self, choice: Mapping[str, Any], *, usage: Usage | None = None) -> bytes:
        """A chunk with one free-form choice: the role, an echoed prompt."""
        return self._head + _encode(choice) + (self._end if usage is None else self._usage_end(usage))

    def usage(self, usage: Usage) -> bytes:
        """The last chunk: no choices, only the bill."""
        return self._head + self._usage_end(usage)

    @staticmethod
    def _usage_end(usage: Usage) -> bytes:
        return b'],"usage":' + _encode(usage_shape(usage)) + b"}\n\n"
