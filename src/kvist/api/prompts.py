"""The forms in which the Python API takes prompts, brought to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from kvist.core.errors import InvalidRequestError
from kvist.tokenization.text_encoder import ChatOptions, TextEncoder


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
Message = Mapping[str, Any]  # Any: contents are checked by the chat template's renderer


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """`text` is None for a prompt given as token ids."""

    text: str | None
    token_ids: Sequence[int]


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several: a list of token ids is one. Raises InvalidRequestError if it is neither."""
    given: Any = prompts  # Any: this is where what users pass meets the types
    if isinstance(given, str | Mapping) or _is_token_ids(given):
        return [given]
    if isinstance(given, Sequence):
        return list(given)
    raise InvalidRequestError(
        f"prompts must be a string, token ids, a dictionary or a list of these, not {type(given).__name__}",
        param="prompts",
    )


def split_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation or several. Raises InvalidRequestError if it is neither."""
    given: Any = messages  # Any: as above
    if isinstance(given, Sequence) and not isinstance(given, str):
        if given and all(isinstance(item, Mapping) for item in given):
            return [given]
        if all(isinstance(item, Sequence) and not isinstance(item, str) for item in given):
            return list(given)
    raise InvalidRequestError(
        "messages must be a list of {'role': ..., 'content': ...} or a list of such lists", param="messages"
    )


def encode_prompt(prompt: Prompt, encoder: TextEncoder) -> EncodedPrompt:
    """Tokenize a text (with the model's BOS, if it has one); take token ids as they are."""
    given: Any = prompt  # Any: as above
    if isinstance(given, str):
        return EncodedPrompt(given, encoder.encode_text(given))
    if isinstance(given, Mapping):
        if len(given) != 1 or not given.keys() <= {"prompt", "prompt_token_ids"}:
            raise InvalidRequestError(
                f"a prompt dictionary has 'prompt' or 'prompt_token_ids'; this one has {', '.join(map(repr, given))}",
                param="prompts",
            )
        return encode_prompt(next(iter(given.values())), encoder)
    if _is_token_ids(given) or given == []:
        return EncodedPrompt(None, list(given))
    raise InvalidRequestError(
        f"a prompt must be a string, a list of token ids or a dictionary, not {type(given).__name__}", param="prompts"
    )


def encode_chat(messages: Sequence[Message], encoder: TextEncoder, options: ChatOptions) -> EncodedPrompt:
    """Render a conversation with the model's chat template and tokenize it."""
    return EncodedPrompt(encoder.render_messages(messages, options), encoder.encode_messages(messages, options))


def _is_token_ids(given: object) -> bool:
    """Whether this is a sequence of integers, and not an empty one."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        return False
    return len(given) > 0 and all(type(item) is int for item in given)
