"""From request fields to SamplingParams: the request counts first, then flags and model file, then built-in values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvist.core.errors import InvalidRequestError
from kvist.core.sampling_params import SamplingParams
from kvist.server.openai_schema import ChatCompletionRequest, CompletionRequest, GenerationFields

_SAME_NAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed", "include_stop_str_in_output", "ignore_eos", "max_tokens", "min_tokens", "prompt_logprobs",
    "skip_special_tokens",
)  # fmt: skip
MAX_LOGIT_BIAS = 100.0


def completion_sampling(request: CompletionRequest, defaults: Mapping[str, float | int]) -> SamplingParams:
    """Raises InvalidRequestError naming the field."""
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise InvalidRequestError(
            f"best_of {request.best_of} is not served: ask for n samples and choose, or leave best_of out",
            param="best_of",
        )
    fields = _common_fields(request, defaults)
    if request.logprobs is not None:
        fields["logprobs"] = request.logprobs
        if request.echo and request.prompt_logprobs is None:
            fields["prompt_logprobs"] = request.logprobs
    return SamplingParams(**fields)


def chat_sampling(request: ChatCompletionRequest, defaults: Mapping[str, float | int]) -> SamplingParams:
    """Raises InvalidRequestError naming the field. Without max_tokens an answer may fill the context."""
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs=true", param="top_logprobs")
    fields = _common_fields(request, defaults)
    if request.max_completion_tokens is not None:
        if request.max_tokens not in (None, request.max_completion_tokens):
            raise InvalidRequestError(
                f"max_tokens {request.max_tokens} and max_completion_tokens {request.max_completion_tokens} differ; "
                "send one of them",
                param="max_completion_tokens",
            )
        fields["max_tokens"] = request.max_completion_tokens
    fields.setdefault("max_tokens", None)
    if request.logprobs:
        fields["logprobs"] = request.top_logprobs or 0
    return SamplingParams(**fields)


def _common_fields(request: GenerationFields, defaults: Mapping[str, float | int]) -> dict[str, Any]:
    # Any: keyword arguments of SamplingParams, which checks ranges itself
    fields: dict[str, Any] = dict(defaults)
    for name in _SAME_NAME:
        value = getattr(request, name)
        if value is not None:
            fields[name] = value
    if fields.get("top_k") == -1:  # vLLM's older spelling of "off"
        fields["top_k"] = 0
    if request.stop is not None:
        fields["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    if request.stop_token_ids is not None:
        fields["stop_token_ids"] = tuple(request.stop_token_ids)
    if request.allowed_token_ids is not None:
        fields["allowed_token_ids"] = tuple(request.allowed_token_ids)
    if request.logit_bias is not None:
        fields["logit_bias"] = _logit_bias(request.logit_bias)
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidRequestError("prompt_logprobs are not streamed; set stream=false", param="prompt_logprobs")
    return fields


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    by_token = {}
    for token, value in bias.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise InvalidRequestError(
                f"logit_bias maps token ids to numbers; {token[:40]!r} is no id", param="logit_bias"
            )
        if not -MAX_LOGIT_BIAS <= value <= MAX_LOGIT_BIAS:
            raise InvalidRequestError(
                f"logit_bias of token {token} must be within ±100, not {value}", param="logit_bias"
            )
        by_token[int(token)] = value
    return by_token
