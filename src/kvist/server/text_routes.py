"""POST /tokenize and /detokenize: the same ids that the engine would use, for text and for messages."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvist.core.errors import InvalidRequestError
from kvist.server.backend import ServerState
from kvist.server.openai_schema import DetokenizeRequest, TokenizeRequest
from kvist.server.prompt_encoding import encode_messages
from kvist.server.request_body import parse_body, read_json_object


async def tokenize(request: Request) -> Response:
    state: ServerState = request.app.state.server
    fields = await read_json_object(request, max_bytes=state.config.max_request_bytes)
    body, _ = parse_body(fields, TokenizeRequest, lenient=state.config.lenient)
    backend = state.backend_for(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        # Straight to the tokenizer: text may be counted that is longer than the context.
        tokens = await asyncio.to_thread(
            backend.encoder.tokenizer.encode, body.prompt, add_special_tokens=body.add_special_tokens is not False
        )
    else:
        tokens = await encode_messages(backend.encoder, body)
    token_text = backend.encoder.tokenizer.token_text

    def answer() -> bytes:
        return msgspec.json.encode(
            {
                "count": len(tokens),
                "max_model_len": backend.generator.model.max_model_len,
                "tokens": tokens,
                "token_strs": [token_text(token) for token in tokens] if body.return_token_strs else None,
            }
        )

    return Response(await asyncio.to_thread(answer), media_type="application/json")


async def detokenize(request: Request) -> Response:
    state: ServerState = request.app.state.server
    fields = await read_json_object(request, max_bytes=state.config.max_request_bytes)
    body, _ = parse_body(fields, DetokenizeRequest, lenient=state.config.lenient)
    backend = state.backend_for(body.model)
    vocab_size = backend.generator.model.vocab_size
    tokenizer = backend.encoder.tokenizer

    def decode() -> str:
        for token in body.tokens:
            if not 0 <= token < vocab_size:
                raise InvalidRequestError(f"token id {token} is outside the vocabulary of {vocab_size}", param="tokens")
        return tokenizer.decode(body.tokens, skip_special_tokens=False)

    text = await asyncio.to_thread(decode)
    return Response(msgspec.json.encode({"prompt": text}), media_type="application/json")
