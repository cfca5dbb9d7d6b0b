"""From the prompt in a body to token ids, without holding up the event loop for long texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvist.core.errors import InvalidRequestError
from kvist.server.openai_schema import ChatCompletionRequest, CompletionRequest, TokenizeRequest
from kvist.tokenization.text_encoder import ChatOptions, TextEncoder

LONG_TEXT_CHARS = 4096  # encoding less takes no longer than switching to a thread


async def encode_prompt(encoder: TextEncoder, prompt: str | list[int], body: CompletionRequest) -> list[int]:
    """Ids of one prompt of a completion. Given ids are taken as they are: no BOS is added to them."""
    if isinstance(prompt, str):
        return await encode_text(
            encoder, prompt, add_special_tokens=body.add_special_tokens, truncate=body.truncate_prompt_tokens
        )
    return encoder.check_token_ids(prompt, truncate_prompt_tokens=body.truncate_prompt_tokens)


async def encode_text(
    encoder: TextEncoder, text: str, *, add_special_tokens: bool | None, truncate: int | None = None
) -> list[int]:
    """Ids of plain text; special tokens are added unless the client says no."""

    def encode() -> list[int]:
        return encoder.encode_text(
            text, add_special_tokens=add_special_tokens is not False, truncate_prompt_tokens=truncate
        )

    return await _off_the_loop(encode, num_chars=len(text))


async def encode_messages(
    encoder: TextEncoder, body: ChatCompletionRequest | TokenizeRequest, *, truncate: int | None = None
) -> list[int]:
    """Ids of a conversation. Raises InvalidRequestError naming the message or option at fault."""
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    add_generation_prompt = not body.continue_final_message
    if body.add_generation_prompt is not None:
        add_generation_prompt = body.add_generation_prompt
    options = ChatOptions(
        add_generation_prompt=add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens is True,
        template_kwargs=body.chat_template_kwargs,
    )

    def encode() -> list[int]:
        return encoder.encode_messages(body.messages, options, truncate_prompt_tokens=truncate)

    return await _off_the_loop(encode, num_chars=_count_chars(body.messages or []))


def _count_chars(messages: list[dict[str, object]]) -> int:
    """Roughly how much text there is, whatever its shape."""
    return sum(len(str(message.get("content", ""))) for message in messages)


async def _off_the_loop(encode: Callable[[], list[int]], *, num_chars: int) -> list[int]:
    return encode() if num_chars < LONG_TEXT_CHARS else await asyncio.to_thread(encode)
