"""Turns what a client sends as a prompt - text, messages or token ids - into the token ids the engine computes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kvist.core.errors import InvalidRequestError, RequestTooLongError
from kvist.tokenization.chat_messages import ChatMessage, parse_messages
from kvist.tokenization.chat_template import ChatTemplate
from kvist.tokenization.tokenizer import Tokenizer

# What can mark control tokens that a user wrote out: Unicode's noncharacters, which real text never holds, then the
# private planes, more characters than a prompt has room for.
_MARKS = (range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How messages become a prompt. `add_special_tokens` adds BOS, say, which templates as a rule write themselves."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    template_kwargs: Mapping[str, Any] | None = None


class TextEncoder:
    """Encodes prompts for one model. Thread-safe; call it in a thread for long prompts.

    max_prompt_tokens: what the model's context can hold. vocab_size: of the model, which may exceed the tokenizer's.
    truncate_prompt_tokens, where taken: keep only the last so many tokens; -1 keeps as many as the context holds.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        *,
        max_prompt_tokens: int,
        vocab_size: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._max_prompt_tokens = max_prompt_tokens
        self._vocab_size = vocab_size
        self._markup = re.compile(
            "|".join(map(re.escape, sorted(tokenizer.special_token_texts, key=len, reverse=True)))
        )

    def encode_text(
        self, text: str, *, add_special_tokens: bool = True, truncate_prompt_tokens: int | None = None
    ) -> list[int]:
        """Return the ids of a plain prompt; control tokens written out in it count as such.

        Raises InvalidRequestError, or RequestTooLongError for text that cannot fit whatever its tokens are.
        """
        self._check_truncation(truncate_prompt_tokens)
        self._check_length(text)
        return self._truncate(
            self.tokenizer.encode(text, add_special_tokens=add_special_tokens), truncate_prompt_tokens
        )

    def encode_messages(
        self, messages: object, options: ChatOptions, *, truncate_prompt_tokens: int | None = None
    ) -> list[int]:
        """Return the ids of a conversation, rendered with the chat template.

        Control tokens that a message writes out stay ordinary text: only the template can open or end a turn.
        Raises InvalidRequestError naming the message, field or option at fault.
        """
        self._check_truncation(truncate_prompt_tokens)
        parsed = parse_messages(messages)
        mark = self._choose_mark(parsed)
        text = self._render([self._marked(message, mark) for message in parsed] if mark else parsed, options)
        self._check_length(text)
        if mark is None:
            ids = self.tokenizer.encode(text, add_special_tokens=options.add_special_tokens)
        else:
            ids = self._encode_marked(text, mark)
            if options.add_special_tokens:
                ids = self.tokenizer.with_special_tokens(ids)
        return self._truncate(ids, truncate_prompt_tokens)

    def render_messages(self, messages: object, options: ChatOptions) -> str:
        """Return the prompt text of a conversation, as it is shown to people."""
        return self._render(parse_messages(messages), options)

    def check_token_ids(self, ids: Sequence[int], *, truncate_prompt_tokens: int | None = None) -> list[int]:
        """Return `ids`, a prompt that the client has encoded; nothing is added. Raises InvalidRequestError."""
        self._check_truncation(truncate_prompt_tokens)
        for index in ids:
            if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < self._vocab_size:
                raise InvalidRequestError(
                    f"token id {index!r} is not in the vocabulary of {self._vocab_size}", param="prompt"
                )
        return self._truncate(list(ids), truncate_prompt_tokens)

    def _render(self, messages: Sequence[ChatMessage], options: ChatOptions) -> str:
        if self.chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template: use /v1/completions, or start kvist with --chat-template FILE",
                param="messages",
            )
        return self.chat_template.render(
            messages,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            template_kwargs=options.template_kwargs,
        )

    def _choose_mark(self, messages: Sequence[ChatMessage]) -> str | None:
        """Return a character that no message holds, or None if no message writes out a control token."""
        texts = [text for message in messages for text in _texts_of(message)]
        if not self._markup.pattern or not any(self._markup.search(text) for text in texts):
            return None
        held = set().union(*texts)
        for mark in map(chr, chain(*_MARKS)):
            if mark not in held:
                return mark
        raise InvalidRequestError("messages hold every private character beside control tokens", param="messages")

    def _marked(self, message: ChatMessage, mark: str) -> ChatMessage:
        """Put `mark` behind the first character of each control token in the message, which hides it."""

        def hide(text: str) -> str:
            return self._markup.sub(lambda found: found[0][0] + mark + found[0][1:], text)

        content = message["content"]
        shown = hide(content) if isinstance(content, str) else [part | {"text": hide(part["text"])} for part in content]
        return message | {"content": shown} | ({"name": hide(message["name"])} if "name" in message else {})

    def _encode_marked(self, text: str, mark: str) -> list[int]:
        """Encode what lies between the template's control tokens as plain text, with the marks taken out again."""
        ids: list[int] = []
        start = 0
        for found in self._markup.finditer(text):
            ids += self._encode_literally(text[start : found.start()].replace(mark, ""))
            index = self.tokenizer.token_id(found[0])
            ids += [] if index is None else [index]
            start = found.end()
        return ids + self._encode_literally(text[start:].replace(mark, ""))

    def _encode_literally(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, parse_special=False) if text else []

    def _check_length(self, text: str) -> None:
        """Refuse text that is too long however well it is compressed, before spending time on it."""
        if len(text) <= self._max_prompt_tokens:
            return
        most = self._max_prompt_tokens * self.tokenizer.max_token_characters
        if len(text) > most:
            raise RequestTooLongError(
                f"the prompt has {len(text)} characters; the context of {self._max_prompt_tokens} tokens holds at most "
                f"{most}",
                param="prompt",
            )

    def _check_truncation(self, limit: int | None) -> None:
        if limit is not None and limit != -1 and not 1 <= limit <= self._max_prompt_tokens:
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be -1 or 1 to {self._max_prompt_tokens}, not {limit}",
                param="truncate_prompt_tokens",
            )

    def _truncate(self, ids: list[int], limit: int | None) -> list[int]:
        if limit is None:
            return ids
        return ids[-(self._max_prompt_tokens if limit == -1 else limit) :]


def _texts_of(message: ChatMessage) -> list[str]:
    content = message["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return [*texts, message["name"]] if "name" in message else texts
