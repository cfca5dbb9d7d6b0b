"""Checks the messages of a chat and brings them into the one form that templates are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvist.core.errors import InvalidRequestError

ROLES = ("system", "developer", "user", "assistant")
_KNOWN_KEYS = ("role", "content", "name")
_MAX_MESSAGES = 20_000  # more than a template's budget of steps allows as a rule
_MAX_PARTS = 20_000  # of one message

ChatMessage = dict[str, Any]  # role, content (text, or a list of text parts), maybe name


def parse_messages(messages: object) -> list[ChatMessage]:
    """Return checked copies of `messages`; keys that are null or empty are dropped.

    Raises InvalidRequestError naming the message and field at fault: unknown roles, content that is no text, and keys
    of features that are not served, such as tool calls.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise InvalidRequestError("messages must be a list of at least one message", param="messages")
    if len(messages) > _MAX_MESSAGES:
        raise InvalidRequestError(f"{len(messages)} messages; at most {_MAX_MESSAGES} are taken", param="messages")
    return [_parse_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def flatten_content(message: ChatMessage) -> ChatMessage:
    """Join a list of text parts, line by line, for templates that know only text."""
    content = message["content"]
    if isinstance(content, str):
        return message
    return message | {"content": "\n".join(part["text"] for part in content)}


def _parse_message(message: object, where: str) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object with role and content", param=where)
    role = message.get("role")
    if role not in ROLES:
        asked = "messages of tools are not served" if role in ("tool", "function") else f"unknown role {role!r}"
        raise InvalidRequestError(f"{where}: {asked}; roles are {', '.join(ROLES)}", param=f"{where}.role")
    for key, value in message.items():
        if key not in _KNOWN_KEYS and value not in (None, [], {}, ""):
            raise InvalidRequestError(f"{where}.{key} is not supported", param=f"{where}.{key}")
    parsed: ChatMessage = {"role": role, "content": _parse_content(message.get("content"), f"{where}.content")}
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise InvalidRequestError(f"{where}.name must be text", param=f"{where}.name")
        parsed["name"] = name
    return parsed


def _parse_content(content: object, where: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes) or not content:
        raise InvalidRequestError(f"{where} must be text or a list of text parts", param=where)
    if len(content) > _MAX_PARTS:
        raise InvalidRequestError(f"{where} has {len(content)} parts; at most {_MAX_PARTS} are taken", param=where)
    return [_parse_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _parse_part(part: object, where: str) -> dict[str, str]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind != "text":
        raise InvalidRequestError(f'{where}: only parts of type "text" are served, not {kind!r}', param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be text", param=f"{where}.text")
    return {"type": "text", "text": text}
