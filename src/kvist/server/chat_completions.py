"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvist.runtime.generation_types import GenerationUpdate, Usage
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
)
from kvist.server.openai_schema import ChatCompletionRequest, StreamOptions
from kvist.server.prompt_encoding import encode_messages
from kvist.server.request_body import parse_body, read_json_object
from kvist.server.sampling_options import chat_sampling
from kvist.server.stream_chunks import ChunkWriter


async def chat_completions(request: Request) -> Response:
    state: ServerState = request.app.state.server
    fields = await read_json_object(request, max_bytes=state.config.max_request_bytes)
    body, ignored = parse_body(fields, ChatCompletionRequest, lenient=state.config.lenient)
    call = begin_call(request, body, state, ignored)
    sampling = chat_sampling(body, call.backend.generator.model.default_sampling)
    prompt = await encode_messages(call.backend.encoder, body, truncate=body.truncate_prompt_tokens)
    requests = generation_requests(request, call, body, sampling, [prompt])
    updates = await run(request, state, call, requests)
    prompt_ids = list(requests[0].prompt_token_ids) if body.return_token_ids else None
    if body.stream:
        return EventStreamResponse(_events(updates, call, body, prompt_ids), call.headers)
    async with DisconnectGuard(request.receive):
        (result,) = await gather_results(call, updates, num_prompts=1, num_samples=sampling.n)
    return Response(_answer(result, call, body, prompt_ids), 200, call.headers, media_type="application/json")


async def _events(
    updates: IndexedUpdates, call: GenerationCall, body: ChatCompletionRequest, prompt_ids: list[int] | None
) -> AsyncGenerator[bytes, None]:
    options = body.stream_options or StreamOptions()
    head = {
        "id": f"chatcmpl-{call.request_id}",
        "object": "chat.completion.chunk",
        "created": call.created_s,
        "model": call.model,
    }
    writer = ChunkWriter(head, is_chat=True, usage_null=options.include_usage)
    usage: Usage | None = None
    async with aclosing(updates):
        async for _, update in updates:
            if usage is None:
                yield _opening(head, writer, update, body, prompt_ids)
            usage = update.usage
            call.raise_failure(update)
            chunks = _chunks(writer, update, body, with_usage=options.continuous_usage_stats)
            if chunks:
                yield b"".join(chunks)
        if options.include_usage and usage is not None:
            yield writer.usage(usage)


def _opening(
    head: dict[str, object],
    writer: ChunkWriter,
    update: GenerationUpdate,
    body: ChatCompletionRequest,
    prompt_ids: list[int] | None,
) -> bytes:
    """Each sample's first chunk names the role. The prompt's ids, if asked for, come with the first of all."""
    chunks = []
    options = body.stream_options or StreamOptions()
    for index in range(body.n or 1):
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if index == 0 and prompt_ids is not None:
            first_head = {**head, "prompt_token_ids": prompt_ids}
            chunks.append(ChunkWriter(first_head, is_chat=True, usage_null=options.include_usage).opening(choice))
        else:
            chunks.append(writer.opening(choice, usage=update.usage if options.continuous_usage_stats else None))
    return b"".join(chunks)


def _chunks(
    writer: ChunkWriter, update: GenerationUpdate, body: ChatCompletionRequest, *, with_usage: bool
) -> list[bytes]:
    usage = update.usage if with_usage else None
    chunks = []
    for delta in update.deltas:
        has_news = delta.text or delta.finish_reason is not None or delta.logprobs
        if not has_news and not (body.return_token_ids and delta.token_ids):
            continue
        logprobs = answer_shapes.chat_logprobs(delta.logprobs) if delta.logprobs and body.logprobs else None
        chunks.append(
            writer.delta(delta.index, delta, logprobs=logprobs, with_token_ids=body.return_token_ids, usage=usage)
        )
    return chunks


def _answer(
    result: PromptResult, call: GenerationCall, body: ChatCompletionRequest, prompt_ids: list[int] | None
) -> bytes:
    choices = []
    for index, sample in enumerate(result.samples):
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": sample.text, "refusal": None},
            "logprobs": answer_shapes.chat_logprobs(sample.logprobs) if body.logprobs else None,
            **answer_shapes.finish_shape(sample.last),
        }
        if body.return_token_ids:
            choice["token_ids"] = sample.token_ids
        choices.append(choice)
    answer = {
        "id": f"chatcmpl-{call.request_id}",
        "object": "chat.completion",
        "created": call.created_s,
        "model": call.model,
        "choices": choices,
        "usage": answer_shapes.usage_shape(result.usage),
    }
    if prompt_ids is not None:
        answer["prompt_token_ids"] = prompt_ids
    if body.prompt_logprobs is not None:
        answer["prompt_logprobs"] = answer_shapes.prompt_logprobs_shape(result.prompt_logprobs)
    return msgspec.json.encode(answer)
