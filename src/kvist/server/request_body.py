"""From bytes to a typed request: bounded reading, names and types of fields. A fault names the field and what to do."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from kvist.core.errors import InvalidRequestError
from kvist.core.suggest import did_you_mean
from kvist.server.body_decoder import JsonObject, decode_object
from kvist.server.error_responses import BodyTooLargeError, UnsupportedMediaTypeError
from kvist.server.openai_schema import UNSERVED

Body = TypeVar("Body", bound=msgspec.Struct)

MAX_SHOWN_CHARS = 64  # of a name that a client made up
_FIELD_IN_ERROR = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
# Nulls are dropped where null means "absent"; what is inside these belongs to the chat template.
_OPAQUE_FIELDS = ("chat_template_kwargs", "metadata")


async def read_json_object(request: Request, *, max_bytes: int) -> JsonObject:
    """Read the whole body. Raises 415, 413 (as soon as it is too long) or 400; ClientDisconnect if the peer left."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedMediaTypeError(
            f"the body has content type {content_type or 'none'!r}; send JSON with 'content-type: application/json'"
        )
    too_large = BodyTooLargeError(f"the body is larger than {max_bytes} bytes; the server's limit is max_request_bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    parts, num_bytes = [], 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise too_large
        parts.append(part)
    return await decode_object(b"".join(parts))


def parse_body(fields: JsonObject, body_type: type[Body], *, lenient: bool) -> tuple[Body, list[str]]:
    """Check names and types. Returns the request and the fields that were ignored (only when `lenient`)."""
    fields = _without_nulls(fields)
    known = body_type.__struct_fields__
    ignored = []
    for name in list(fields):
        if name in known:
            continue
        value = fields.pop(name)
        if name in UNSERVED and value in UNSERVED[name]:
            continue
        if not lenient:
            raise InvalidRequestError(_why_refused(name, known), param=name[:MAX_SHOWN_CHARS])
        ignored.append(re.sub(r"[^\w.-]", "?", name[:MAX_SHOWN_CHARS], flags=re.ASCII))
    try:
        return msgspec.convert(fields, body_type), ignored
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise _name_the_field(str(error)) from None


def _without_nulls(fields: JsonObject) -> JsonObject:
    """Drop null fields of the body, of its messages and of its option objects."""
    cleaned: JsonObject = {}
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, dict) and name not in _OPAQUE_FIELDS:
            value = {key: inner for key, inner in value.items() if inner is not None}
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            value = [_without_null_values(item) for item in value]
        cleaned[name] = value
    return cleaned


def _without_null_values(item: object) -> object:
    return {key: value for key, value in item.items() if value is not None} if isinstance(item, dict) else item


def _why_refused(name: str, known: tuple[str, ...]) -> str:
    if name in UNSERVED:
        return f"{name} is not served: this server has no such feature. Leave the field out"
    shown = name[:MAX_SHOWN_CHARS]
    if name == "max_completion_tokens" and "max_tokens" in known:  # the chat route's name for it
        return "max_completion_tokens is a field of chat completions. Send max_tokens"
    hint = did_you_mean(shown, known) or " Leave it out, or start the server with --lenient."
    return f"unknown field {shown!r}.{hint}"


def _name_the_field(message: str) -> InvalidRequestError:
    found = _FIELD_IN_ERROR.search(message)
    missing = re.search(r"missing required field `(\w+)`", message)
    if found is not None and found["path"]:
        path = found["path"]
        param = re.split(r"[.\[]", path)[0] or None
        return InvalidRequestError(f"{path}: {message[: found.start()]}", param=param)
    if missing is not None:
        return InvalidRequestError(f"the field {missing[1]!r} is missing", param=missing[1])
    return InvalidRequestError(message)
