"""Pieces of OpenAI's answers that several routes share: usage, log-probabilities, finish reasons."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from kvist.runtime.generation_types import PositionLogprobs, SampleDelta, TokenLogprob, Usage

JsonObject = dict[str, Any]  # Any: leaves of different types, encoded at once
LOWEST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI sends this for "never"


def usage_shape(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def finish_shape(last: SampleDelta | None) -> JsonObject:
    """finish_reason, and which stop string or token it was."""
    reason = None if last is None or last.finish_reason is None else last.finish_reason.value
    return {"finish_reason": reason, "stop_reason": None if last is None else last.stop_reason}


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> JsonObject:
    content = []
    for position in positions:
        entry = _chat_token(position.chosen)
        entry["top_logprobs"] = [_chat_token(token) for token in position.top]
        content.append(entry)
    return {"content": content, "refusal": None}


def _chat_token(token: TokenLogprob) -> JsonObject:
    return {"token": token.token, "logprob": _finite(token.logprob), "bytes": list(token.token_bytes)}


class TextOffsets:
    """Where in the whole text each token begins; one that goes on with a character begins after that character."""

    def __init__(self, start: int = 0) -> None:
        self._next = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def advance(self, token_bytes: bytes) -> int:
        """The offset of the next token, which stands for these bytes."""
        offset = self._next
        self._next += len(self._decoder.decode(token_bytes))
        return offset


def completion_logprobs(
    positions: Sequence[PositionLogprobs], offsets: TextOffsets, *, unscored: tuple[str, bytes] | None = None
) -> JsonObject:
    """The older shape: four columns. unscored: an echoed prompt's first token (text, bytes), which nothing predicts."""
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []
    if unscored is not None:
        tokens.append(unscored[0])
        token_logprobs.append(None)
        top_logprobs.append(None)
        text_offset.append(offsets.advance(unscored[1]))
    for position in positions:
        chosen = position.chosen
        tokens.append(chosen.token)
        token_logprobs.append(_finite(chosen.logprob))
        top = {chosen.token: _finite(chosen.logprob)}
        top.update({token.token: _finite(token.logprob) for token in position.top})
        top_logprobs.append(top)
        text_offset.append(offsets.advance(chosen.token_bytes))
    return {
        "tokens": tokens,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
        "text_offset": text_offset,
    }


def prompt_logprobs_shape(positions: Sequence[PositionLogprobs]) -> list[JsonObject | None]:
    """vLLM's shape: per prompt token a map from token id; the first token has none."""
    shaped: list[JsonObject | None] = [None]
    for position in positions:
        tokens = {token.token_id: token for token in (*position.top, position.chosen)}
        shaped.append(
            {
                str(token_id): {
                    "logprob": _finite(token.logprob),
                    "rank": token.rank,
                    "decoded_token": token.token,
                }
                for token_id, token in tokens.items()
            }
        )
    return shaped


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
