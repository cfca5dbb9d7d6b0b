"""Renders a conversation into the text a model was trained on, with the checkpoint's own Jinja template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes

from kvist.core.errors import ConfigError, InvalidRequestError
from kvist.tokenization.chat_messages import ChatMessage, flatten_content
from kvist.tokenization.template_sandbox import ChatTemplateEnvironment, render_bounded

MAX_TEMPLATE_CHARACTERS = 1 << 20
_END_MARK = "\ufdd4 "  # a noncharacter of Unicode, never in real text, and a space that shows whether text is trimmed
_RESERVED = frozenset({"messages", "add_generation_prompt", "tools", "documents", "raise_exception", "strftime_now"})
# What template code, which is any expression over the messages, can raise.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One compiled template. Thread-safe.

    named_tokens: "bos_token" and the like, with their text. now: local time, for templates that state the date.
    origin: where the template comes from, for messages. Raises ConfigError if it does not compile.
    """

    def __init__(
        self, source: str, *, named_tokens: Mapping[str, str], now: Callable[[], datetime], origin: str
    ) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ConfigError(
                f"the chat template of {origin} has {len(source)} characters; the limit is {MAX_TEMPLATE_CHARACTERS}"
            )
        self.source = source
        self._named_tokens = dict(named_tokens)
        environment = ChatTemplateEnvironment(now)
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ConfigError(
                f"the chat template of {origin} does not compile: {error}. Give another with --chat-template."
            ) from error
        self.variables = frozenset(meta.find_undeclared_variables(tree)) - _RESERVED - set(named_tokens)
        self._takes_parts = _loops_over_content(tree)
        self._knows_developer = any(node.value == "developer" for node in tree.find_all(nodes.Const))

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text of checked messages.

        add_generation_prompt: end with the opening of an assistant's turn. continue_final_message: leave the last
        message open instead, so that the model goes on writing it. template_kwargs: further variables of the template.
        Raises InvalidRequestError if the template refuses the messages or does not know a variable.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message needs add_generation_prompt=false: the last turn is open already",
                param="continue_final_message",
            )
        given = dict(template_kwargs or {})
        self._check_kwargs(given)
        if continue_final_message:
            messages = _with_end_mark(messages)
        shaped = [self._shape(message) for message in messages]
        variables = self._named_tokens | {"tools": None, "documents": None} | given
        variables |= {"messages": shaped, "add_generation_prompt": add_generation_prompt}
        try:
            text = render_bounded(self._template, variables)
        except _TEMPLATE_ERRORS as error:
            reason = str(error) or type(error).__name__
            raise InvalidRequestError(f"the model's chat template refuses: {reason}", param="messages") from error
        return _cut_at_mark(text) if continue_final_message else text

    def _shape(self, message: ChatMessage) -> ChatMessage:
        if message["role"] == "developer" and not self._knows_developer:
            message = message | {"role": "system"}
        return message if self._takes_parts else flatten_content(message)

    def _check_kwargs(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name in _RESERVED or name not in self.variables:
                known = ", ".join(sorted(self.variables)) or "none"
                raise InvalidRequestError(
                    f"chat_template_kwargs: this model's template takes no {name!r}; it takes: {known}",
                    param="chat_template_kwargs",
                )


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether the template itself takes message content as a list of parts."""
    return any(
        (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content")
        or (isinstance(node, nodes.Getattr) and node.attr == "content")
        or (isinstance(node, nodes.Name) and node.name == "content")
        for loop in tree.find_all(nodes.For)
        for node in (loop.iter, *loop.iter.find_all(nodes.Expr))
    )


def _with_end_mark(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return `messages` with a mark at the end of the last one's text."""
    final = messages[-1]
    content = final["content"]
    if isinstance(content, str):
        marked: Any = content + _END_MARK
    else:
        marked = [*content[:-1], content[-1] | {"text": content[-1]["text"] + _END_MARK}]
    return [*messages[:-1], final | {"content": marked}]


def _cut_at_mark(text: str) -> str:
    """Return `text` up to the mark; without spaces at its end, if the template has trimmed the message."""
    end = text.rfind(_END_MARK[0])
    if end < 0:
        raise InvalidRequestError(
            "continue_final_message: the template does not show the last message's text", param="continue_final_message"
        )
    return text[:end] if text.startswith(_END_MARK, end) else text[:end].rstrip()
