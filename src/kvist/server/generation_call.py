"""One call to a generating route, whatever its shape: identity, ids, lengths, then prompts in and updates out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request

from kvist.core.errors import (
    DeadlineExceededError,
    EngineUnavailableError,
    InvalidRequestError,
    QueueFullError,
    RequestTooLongError,
)
from kvist.core.request import FinishReason, KeyDomain
from kvist.core.sampling_params import SamplingParams
from kvist.kvcache.key_domain import narrow_domain
from kvist.runtime.generation_types import GenerationRequest, GenerationUpdate, PositionLogprobs, SampleDelta, Usage
from kvist.server.backend import Backend, ServerState
from kvist.server.disconnect import DisconnectGuard
from kvist.server.error_responses import GenerationFailedError
from kvist.server.openai_schema import GenerationFields
from kvist.server.update_streams import merged, start_all

MAX_PRIORITY = 2**31 - 1
MAX_TARGET_MS = 1e9
NO_USAGE = Usage(0, 0, 0)
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

IndexedUpdates = AsyncGenerator[tuple[int, GenerationUpdate], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall:
    """What every answer to this call says of itself."""

    backend: Backend
    request_id: str
    model: str
    created_s: int
    headers: dict[str, str]
    expires_s: float | None  # in the event loop's clock

    def raise_failure(self, update: GenerationUpdate) -> None:
        """Raise why a sample will never be complete, if one of this update's will not."""
        for delta in update.deltas:
            if delta.finish_reason is FinishReason.ERROR:
                message = delta.error or "unknown error in the engine"
                if self.expires_s is not None and asyncio.get_running_loop().time() >= self.expires_s:
                    raise DeadlineExceededError(message)
                if self.backend.client.status().state != "ready":  # the engine was lost, not just this request
                    raise EngineUnavailableError(f"the request failed: {message}")
                raise GenerationFailedError(f"the request failed: {message}")
            if delta.finish_reason is FinishReason.ABORT:
                raise EngineUnavailableError(f"the request was aborted: {delta.error or 'the server is shutting down'}")


@dataclass(slots=True, eq=False)
class SampleResult:
    """One finished sample, gathered for an answer that is not streamed."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    last: SampleDelta | None = None

    def add(self, delta: SampleDelta) -> None:
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        if delta.finish_reason is not None:
            self.last = delta

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(slots=True, eq=False)
class PromptResult:
    """All samples of one prompt."""

    samples: list[SampleResult]
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    usage: Usage = NO_USAGE


def begin_call(request: Request, body: GenerationFields, state: ServerState, ignored: Sequence[str]) -> GenerationCall:
    """Check what does not depend on the prompt. Raises what the client is told."""
    backend = state.backend_for(body.model)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options needs stream=true", param="stream_options")
    if body.request_id is not None and not _REQUEST_ID.fullmatch(body.request_id):
        raise InvalidRequestError("request_id takes 1 to 128 visible ASCII characters", param="request_id")
    if not -MAX_PRIORITY <= body.priority <= MAX_PRIORITY:
        raise InvalidRequestError(f"priority must be within ±{MAX_PRIORITY}", param="priority")
    for name in ("ttft_ms", "tpot_ms", "deadline_ms"):
        value = getattr(body, name)
        if value is not None and not 0.0 < value <= MAX_TARGET_MS:
            message = f"{name} must be above 0 and at most {MAX_TARGET_MS:.0f} milliseconds, not {value}"
            raise InvalidRequestError(message, param=name)
    request_id = body.request_id or request.scope["state"]["request_id"]
    state.owners.note(request_id, request.scope["state"]["key_domain"])
    return GenerationCall(
        backend=backend,
        request_id=request_id,
        model=body.model or backend.generator.model.served_names[0],
        created_s=int(state.wall_time_s()),
        expires_s=None if body.deadline_ms is None else asyncio.get_running_loop().time() + body.deadline_ms / 1000.0,
        headers={"x-kvist-ignored-fields": ",".join(ignored[:32])} if ignored else {},
    )


def generation_requests(
    request: Request,
    call: GenerationCall,
    body: GenerationFields,
    sampling: SamplingParams,
    prompts: Sequence[Sequence[int]],
    *,
    has_default_length: bool = False,
) -> list[GenerationRequest]:
    """One request per prompt, each checked against the model before any is submitted.

    has_default_length: the client named no max_tokens, so the default yields to what the context has room for.
    """
    domain: KeyDomain = request.scope["state"]["key_domain"]
    if body.cache_salt is not None:
        domain = narrow_domain(domain, body.cache_salt)
    requests = [
        GenerationRequest(
            request_id=call.request_id,
            prompt_token_ids=prompt,
            sampling=_with_room(sampling, len(prompt), call) if has_default_length else sampling,
            domain=domain,
            priority=body.priority,
            deadline_s=None if body.deadline_ms is None else body.deadline_ms / 1000.0,
            skip_reading_prefix_cache=body.skip_reading_prefix_cache,
            ttft_ms=body.ttft_ms,
            tpot_ms=body.tpot_ms,
        )
        for prompt in prompts
    ]
    for one in requests:
        call.backend.generator.validate(one)
    return requests


def _with_room(sampling: SamplingParams, num_prompt_tokens: int, call: GenerationCall) -> SamplingParams:
    room = call.backend.generator.model.max_model_len - num_prompt_tokens
    if sampling.max_tokens is None or not 0 < room < sampling.max_tokens:
        return sampling
    return msgspec.structs.replace(sampling, max_tokens=room, min_tokens=min(sampling.min_tokens, room))


async def run(
    request: Request, state: ServerState, call: GenerationCall, requests: Sequence[GenerationRequest]
) -> IndexedUpdates:
    """Submit; return once the engine has taken all prompts. Raises what it was refused for, and counts it."""
    streams = [call.backend.generator.generate(one) for one in requests]
    try:
        async with DisconnectGuard(request.receive):
            first = await start_all(streams)
    except QueueFullError:
        state.recorder.record_rejected("queue_full")
        raise
    except EngineUnavailableError:
        state.recorder.record_rejected("unavailable")
        raise
    except RequestTooLongError:
        state.recorder.record_rejected("too_long")
        raise
    return merged(streams, first)


async def gather_results(
    call: GenerationCall, updates: IndexedUpdates, *, num_prompts: int, num_samples: int
) -> list[PromptResult]:
    """Wait for the end of all. Raises if a sample failed or was aborted."""
    results = [PromptResult([SampleResult() for _ in range(num_samples)]) for _ in range(num_prompts)]
    async with aclosing(updates):
        async for index, update in updates:
            call.raise_failure(update)
            result = results[index]
            result.usage = update.usage
            result.prompt_logprobs += update.prompt_logprobs or ()
            for delta in update.deltas:
                result.samples[delta.index].add(delta)
    return results


def total_usage(usages: Sequence[Usage]) -> Usage:
    """The bill of a call with several prompts."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )
