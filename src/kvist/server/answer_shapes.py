"""Pieces of OpenAI's answers that several routes share: usage, log-probabilities, finish reasons."""

from __future__ import annotations

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


def completion_logprobs(
    positions: Sequence[PositionLogprobs], *, text_offset: int = 0, unscored: str | None = None
) -> JsonObject:
    """The older shape: four columns. unscored: an echoed prompt's first token, which nothing predicts."""
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    offsets: list[int] = []
    if unscored is not None:
        tokens.append(unscored)
        token_logprobs.append(None)
        top_logprobs.append(None)
        offsets.append(text_offset)
        text_offset += len(unscored)
    for position in positions:
        offsets.append(text_offset)
        chosen = position.chosen
        tokens.append(chosen.token)
        token_logprobs.append(_finite(chosen.logprob))
        top = {chosen.token: _finite(chosen.logprob)}
        top.update({token.token: _finite(token.logprob) for token in position.top})
        top_logprobs.append(top)
        text_offset += len(chosen.token)
    return {
        "tokens": tokens,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
        "text_offset": offsets,
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
