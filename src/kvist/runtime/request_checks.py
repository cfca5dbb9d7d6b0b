"""Checks a generation request against the model it is meant for, and completes its sampling options."""

from __future__ import annotations

import msgspec

from kvist.core.errors import InvalidRequestError, RequestTooLongError
from kvist.core.sampling_params import SamplingParams
from kvist.runtime.generation_types import GenerationRequest, ModelInfo

_MASK_64 = 2**64 - 1


def check_request(request: GenerationRequest, model: ModelInfo) -> None:
    """Raise InvalidRequestError or RequestTooLongError, naming the field, if the model cannot serve `request`."""
    num_prompt_tokens = len(request.prompt_token_ids)
    if num_prompt_tokens == 0:
        raise InvalidRequestError("the prompt is empty; it needs at least one token", param="prompt")
    sampling = request.sampling
    room = model.max_model_len - num_prompt_tokens
    if room < 0 or (room == 0 and sampling.max_tokens != 0):
        raise RequestTooLongError(
            f"the prompt has {num_prompt_tokens} tokens; the model's context is {model.max_model_len} tokens and must "
            "hold the prompt and at least one output token. Shorten the prompt or raise max_model_len.",
            param="prompt",
        )
    if sampling.max_tokens is not None and sampling.max_tokens > room:
        raise RequestTooLongError(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {sampling.max_tokens}; together they exceed "
            f"the model's context of {model.max_model_len} tokens. At most {room} fit, or leave max_tokens out.",
            param="max_tokens",
        )
    if sampling.min_tokens > room:
        raise RequestTooLongError(
            f"min_tokens is {sampling.min_tokens}, but after the prompt only {room} tokens fit", param="min_tokens"
        )
    _check_token_ids(request, model.vocab_size)


def complete_sampling(
    sampling: SamplingParams, num_prompt_tokens: int, model: ModelInfo, serial: int
) -> SamplingParams:
    """Fill in what the client left to us: the context's end as `max_tokens`, and a seed.

    The seed is derived from the model's configured seed and the request's place in order, so that a program run twice
    gives the same output, while equal requests within a run differ.
    """
    max_tokens = sampling.max_tokens
    return msgspec.structs.replace(
        sampling,
        n=1,
        max_tokens=model.max_model_len - num_prompt_tokens if max_tokens is None else max_tokens,
        seed=_derive_seed(model.seed, serial) if sampling.seed is None else sampling.seed,
    )


def _check_token_ids(request: GenerationRequest, vocab_size: int) -> None:
    sampling = request.sampling
    for field, token_ids in (
        ("prompt", request.prompt_token_ids),
        ("stop_token_ids", sampling.stop_token_ids),
        ("logit_bias", sampling.logit_bias or ()),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
    ):
        # min and max run in C: prompts may have 100k tokens.
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
            bad = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
            raise InvalidRequestError(
                f"{field} has token id {bad}; the model's vocabulary is 0 to {vocab_size - 1}", param=field
            )
    if sampling.allowed_token_ids is not None and not sampling.allowed_token_ids:
        raise InvalidRequestError("allowed_token_ids is empty: no token could be sampled", param="allowed_token_ids")


def _derive_seed(seed: int, serial: int) -> int:
    """Mix two numbers to a well-spread one below 2**63 (the finalizer of splitmix64)."""
    mixed = (seed + (serial + 1) * 0x9E3779B97F4A7C15) & _MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return (mixed ^ (mixed >> 31)) >> 1
