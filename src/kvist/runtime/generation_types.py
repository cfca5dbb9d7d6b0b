"""What goes into text generation and what comes out, piece by piece: shared by the HTTP server and the Python API."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvist.core.request import PUBLIC_DOMAIN, FinishReason, KeyDomain
from kvist.core.sampling_params import SamplingParams


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, as token ids, and how to continue it; `sampling.n` samples share the prompt's KV.

    request_id: the caller's name for it in logs; need not be unique. deadline_s: seconds from now, or None.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    domain: KeyDomain = PUBLIC_DOMAIN
    priority: int = 0
    deadline_s: float | None = None
    skip_reading_prefix_cache: bool = False
    ttft_ms: float | None = None
    tpot_ms: float | None = None


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """One candidate at a position: its text as the client sees it and its exact bytes (maybe part of a character)."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    rank: int  # 1 is the likeliest


class PositionLogprobs(msgspec.Struct, frozen=True):
    """The token at one position and the `logprobs` (or `prompt_logprobs`) likeliest ones, best first."""

    chosen: TokenLogprob
    top: list[TokenLogprob]


class SampleDelta(msgspec.Struct):
    """What one sample gained since its last delta. The text may lag behind the tokens: half characters and possible
    stop strings are held back. The last delta has a `finish_reason` (and nothing follows for that `index`).

    token_ids: new ones, a stop token included. logprobs: one entry per new token, if asked for.
    stop_reason: the stop string or stop token id given in the request that ended it; None for EOS and the rest.
    error: what went wrong, if finish_reason is ERROR.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens so far, over all samples. cached_tokens: prompt tokens whose KV was really read from the cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class GenerationUpdate(msgspec.Struct):
    """One turn of the stream. The first update comes (maybe empty) as soon as the engine has taken the request.

    prompt_logprobs: the next scored prompt positions, starting with the second prompt token (the first has none).
    is_final: all samples have finished; `usage` is then the bill.
    """

    deltas: list[SampleDelta]
    usage: Usage
    prompt_logprobs: list[PositionLogprobs] | None = None
    is_final: bool = False


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the front needs to know of the model that the engine runs; known once the engine is ready.

    default_sampling: sampling fields in force for requests that do not set them (model file, then flags).
    """

    name: str
    served_names: tuple[str, ...]
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    seed: int
    default_sampling: dict[str, float | int]
