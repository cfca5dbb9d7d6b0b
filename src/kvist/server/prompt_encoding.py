"""From the prompt in a body to token ids, without holding up the event loop for long texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvist.core.errors import InvalidRequestError, RequestTooLongError
from kvist.server.openai_schema import ChatCompletionRequest, CompletionRequest, TextOrTokens, TokenizeRequest
from kvist.tokenization.text_encoder import ChatOptions, TextEncoder

MAX_SAMPLES = 1024  # of one call, over all its prompts
LONG_TEXT_CHARS = 4096  # encoding less takes no longer than switching to a thread


def parse_prompts(prompt: TextOrTokens, *, max_tokens: int, keep_last: bool = False) -> list[str | list[int]]:
    """Accept a text, a list of texts, a list of token ids or a list of such lists. Raises InvalidRequestError.

    Ids beyond `max_tokens` are refused, or the last ones kept, before anything is done with each of them.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("prompt is an empty list; give text or at least one token id", param="prompt")
    if type(prompt[0]) is int:
        return [_parse_tokens(prompt, max_tokens, keep_last=keep_last)]
    if len(prompt) > MAX_SAMPLES:
        raise InvalidRequestError(f"prompt holds {len(prompt)} prompts; at most {MAX_SAMPLES}", param="prompt")
    return [item if isinstance(item, str) else _parse_tokens(item, max_tokens, keep_last=keep_last) for item in prompt]


def _parse_tokens(item: object, max_tokens: int, *, keep_last: bool) -> list[int]:
    if isinstance(item, list) and len(item) > max_tokens:
        if not keep_last:
            raise RequestTooLongError(
                f"the prompt has {len(item)} tokens; the model's context is {max_tokens}", param="prompt"
            )
        item = item[-max_tokens:]
    if not isinstance(item, list) or not item or not all(type(token) is int for token in item):
        raise InvalidRequestError(
            "prompt must be text, a list of texts, a list of token ids or a list of such lists", param="prompt"
        )
    return item


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
    """Roughly how much text there is, whatever its shape; a part counts as long text until it is looked at."""
    contents = [message.get("content", "") for message in messages]
    return sum(len(content) if isinstance(content, str) else LONG_TEXT_CHARS for content in contents)


async def _off_the_loop(encode: Callable[[], list[int]], *, num_chars: int) -> list[int]:
    return encode() if num_chars < LONG_TEXT_CHARS else await asyncio.to_thread(encode)
