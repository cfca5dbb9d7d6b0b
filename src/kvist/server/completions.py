"""POST /v1/completions: text or token ids in, one or several prompts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvist.core.errors import InvalidRequestError
from kvist.runtime.generation_types import GenerationUpdate, SampleDelta, Usage
from kvist.server import answer_shapes
from kvist.server.backend import ServerState
from kvist.server.disconnect import DisconnectGuard
from kvist.server.event_stream import EventStreamResponse
from kvist.server.generation_call import (
    GenerationCall,
    IndexedUpdates,
    PromptResult,
    begin_call,
    gather_results,
    generation_requests,
    run,
    total_usage,
)
from kvist.server.openai_schema import CompletionRequest, StreamOptions
from kvist.server.prompt_encoding import MAX_SAMPLES, encode_prompt, parse_prompts
from kvist.server.request_body import parse_body, read_json_object
from kvist.server.sampling_options import completion_sampling
from kvist.server.stream_chunks import ChunkWriter
from kvist.tokenization.text_encoder import TextEncoder
from kvist.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the engine will see it; `text` is what an echo shows.

    first_token: as text, and the bytes that it has in `text` (none, if it is a token like BOS).
    """

    token_ids: list[int]
    text: str
    first_token: tuple[str, bytes]


async def completions(request: Request) -> Response:
    state: ServerState = request.app.state.server
    fields = await read_json_object(request, max_bytes=state.config.max_request_bytes)
    body, ignored = parse_body(fields, CompletionRequest, lenient=state.config.lenient)
    call = begin_call(request, body, state, ignored)
    sampling = completion_sampling(body, call.backend.generator.model.default_sampling)
    if body.stream and body.echo and body.logprobs is not None:
        raise InvalidRequestError("echo with logprobs is not streamed; set stream=false", param="echo")
    max_tokens, truncates = call.backend.generator.model.max_model_len, body.truncate_prompt_tokens is not None
    parts = parse_prompts(body.prompt, max_tokens=max_tokens, keep_last=truncates)
    if len(parts) * sampling.n > MAX_SAMPLES:
        raise InvalidRequestError(
            f"{len(parts)} prompts times n = {sampling.n} are more than {MAX_SAMPLES} samples; send several requests",
            param="n",
        )
    encoder = call.backend.encoder
    prompts = []
    for part in parts:
        token_ids = await encode_prompt(encoder, part, body)
        text = _echo_text(encoder, part, token_ids, body)
        prompts.append(Prompt(token_ids, text, _first_token(encoder.tokenizer, token_ids)))
    requests = generation_requests(
        request,
        call,
        body,
        sampling,
        [prompt.token_ids for prompt in prompts],
        has_default_length=body.max_tokens is None,
    )
    updates = await run(request, state, call, requests)
    if body.stream:
        return EventStreamResponse(_events(updates, call, body, prompts), call.headers)
    async with DisconnectGuard(request.receive):
        results = await gather_results(call, updates, num_prompts=len(prompts), num_samples=sampling.n)
    answer = _answer(results, call, body, prompts)
    return Response(answer, 200, call.headers, media_type="application/json")


def _first_token(tokenizer: Tokenizer, token_ids: list[int]) -> tuple[str, bytes]:
    if not token_ids:
        return "", b""
    first = token_ids[0]
    return tokenizer.token_text(first), b"" if first in tokenizer.special_token_ids else tokenizer.token_bytes(first)


def _echo_text(encoder: TextEncoder, part: str | list[int], token_ids: list[int], body: CompletionRequest) -> str:
    if not body.echo:
        return ""
    if isinstance(part, str) and body.truncate_prompt_tokens is None:
        return part
    return encoder.tokenizer.decode(token_ids, skip_special_tokens=body.skip_special_tokens is not False)


@dataclass(slots=True, eq=False)
class _Streaming:
    """What a streamed completion must remember between chunks."""

    writer: ChunkWriter
    body: CompletionRequest
    prompts: list[Prompt]
    opened: set[int] = field(default_factory=set)
    text_offsets: dict[int, answer_shapes.TextOffsets] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        return self.body.n or 1

    def opening(self, prompt_index: int) -> bytes:
        """The prompt, for those who asked to see its text or its ids, before anything else of its samples."""
        self.opened.add(prompt_index)
        prompt = self.prompts[prompt_index]
        if not (self.body.echo or self.body.return_token_ids):
            return b""
        chunks = []
        for sample in range(self.num_samples):
            choice: dict[str, object] = {
                "index": prompt_index * self.num_samples + sample,
                "text": prompt.text,
                "logprobs": None,
                "finish_reason": None,
            }
            if self.body.return_token_ids:
                choice |= {"token_ids": [], "prompt_token_ids": prompt.token_ids}
            chunks.append(self.writer.opening(choice))
        return b"".join(chunks)

    def chunk(self, prompt_index: int, delta: SampleDelta, usage: Usage | None) -> bytes:
        has_news = delta.text or delta.finish_reason is not None or delta.logprobs
        if not has_news and not (self.body.return_token_ids and delta.token_ids):
            return b""
        index = prompt_index * self.num_samples + delta.index
        logprobs = None
        if delta.logprobs:
            offsets = self.text_offsets.setdefault(
                index, answer_shapes.TextOffsets(len(self.prompts[prompt_index].text))
            )
            logprobs = answer_shapes.completion_logprobs(delta.logprobs, offsets)
        return self.writer.delta(
            index, delta, logprobs=logprobs, with_token_ids=self.body.return_token_ids, usage=usage
        )

    def chunks(self, prompt_index: int, update: GenerationUpdate, usage: Usage | None) -> bytes:
        first = b"" if prompt_index in self.opened else self.opening(prompt_index)
        return first + b"".join([self.chunk(prompt_index, delta, usage) for delta in update.deltas])


async def _events(
    updates: IndexedUpdates, call: GenerationCall, body: CompletionRequest, prompts: list[Prompt]
) -> AsyncGenerator[bytes, None]:
    options = body.stream_options or StreamOptions()
    writer = ChunkWriter(_head(call), is_chat=False, usage_null=options.include_usage)
    streaming = _Streaming(writer, body, prompts)
    usages = [Usage(0, 0, 0)] * len(prompts)
    async with aclosing(updates):
        async for index, update in updates:
            call.raise_failure(update)
            usages[index] = update.usage
            chunks = streaming.chunks(index, update, total_usage(usages) if options.continuous_usage_stats else None)
            if chunks:
                yield chunks
        if options.include_usage:
            yield writer.usage(total_usage(usages))


def _head(call: GenerationCall) -> dict[str, object]:
    return {
        "id": f"cmpl-{call.request_id}",
        "object": "text_completion",
        "created": call.created_s,
        "model": call.model,
    }


def _answer(results: list[PromptResult], call: GenerationCall, body: CompletionRequest, prompts: list[Prompt]) -> bytes:
    choices: list[dict[str, object]] = []
    for prompt, result in zip(prompts, results, strict=True):
        for sample in result.samples:
            choice: dict[str, object] = {
                "index": len(choices),
                "text": prompt.text + sample.text,
                "logprobs": None,
            }
            if body.logprobs is not None:
                scored = [*result.prompt_logprobs, *sample.logprobs] if body.echo else sample.logprobs
                choice["logprobs"] = answer_shapes.completion_logprobs(
                    scored, answer_shapes.TextOffsets(), unscored=prompt.first_token if body.echo else None
                )
            choice |= answer_shapes.finish_shape(sample.last)
            if body.prompt_logprobs is not None:
                choice["prompt_logprobs"] = answer_shapes.prompt_logprobs_shape(result.prompt_logprobs)
            if body.return_token_ids:
                choice |= {"token_ids": sample.token_ids, "prompt_token_ids": prompt.token_ids}
            choices.append(choice)
    usage = total_usage([result.usage for result in results])
    return msgspec.json.encode(_head(call) | {"choices": choices, "usage": answer_shapes.usage_shape(usage)})
