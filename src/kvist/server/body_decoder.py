"""JSON bodies, decoded so that no body keeps the event loop from the streams of others for long.

What takes time is the number of values, not that of bytes: nine megabytes are one text in milliseconds, or two million
lists in seconds. So a large body is taken apart without making values of its parts; what could not be served anyway
is refused by the number or size of those, and the rest becomes values piece by piece, others having their turn between.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from kvist.core.errors import InvalidRequestError
from kvist.core.garbage_collection import without_collections
from kvist.server.openai_schema import (
    UNSERVED,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

JsonObject = dict[str, Any]  # Any: what a client sent, not yet checked

LARGE_BYTES = 256 << 10  # a smaller body is decoded at once
LONG_FIELDS = ("prompt", "messages", "tokens")
MAX_OTHER_BYTES = 2 << 20  # of any other field; a bias for each token of the largest vocabularies fits
MAX_UNKNOWN_BYTES = 256 << 10  # of an object, outside the fields that any request or message has
MAX_ITEMS = 20_000  # messages, parts of one, or prompts
MAX_TOKEN_IDS = 1 << 20  # of one prompt
DEPTH = 3  # of what is taken apart: messages, one of them, its content's parts

_KNOWN_NAMES = {
    *CompletionRequest.__struct_fields__, *ChatCompletionRequest.__struct_fields__, *TokenizeRequest.__struct_fields__,
    *DetokenizeRequest.__struct_fields__, *UNSERVED, "role", "content", "name", "type", "text",
}  # fmt: skip
_KnownFields = msgspec.defstruct("_KnownFields", [(name, msgspec.Raw, msgspec.Raw()) for name in _KNOWN_NAMES])


async def decode_object(body: bytes) -> JsonObject:
    """Raises InvalidRequestError if it is no JSON object, or holds more values than any request that is served."""
    try:
        if len(body) <= LARGE_BYTES:
            fields = _decode(body, Any)
            if not isinstance(fields, dict):
                raise InvalidRequestError(f"the body must be a JSON object, not {type(fields).__name__}")
            return fields
        return await _decode_large(body)
    except RecursionError:
        raise InvalidRequestError("the body is not valid JSON: it is nested too deeply") from None
    except msgspec.ValidationError:  # asked of a large body only
        raise InvalidRequestError("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None


async def _decode_large(body: bytes) -> JsonObject:
    fields: JsonObject = {}
    for name, part in _fields(body, "the body").items():
        if name in LONG_FIELDS:
            fields[name] = await _decode_long(part, name, DEPTH)
            continue
        num_bytes = len(memoryview(part))
        if num_bytes > MAX_OTHER_BYTES:
            shown = name[:64]
            message = f"{shown!r} has {num_bytes} bytes; at most {MAX_OTHER_BYTES} are taken"
            raise InvalidRequestError(message, param=shown)
        fields[name] = _decode(part, Any)
    return fields


async def _decode_long(part: msgspec.Raw, name: str, depth: int) -> object:
    """depth: of lists and objects that are taken apart once more where they are large."""
    content = memoryview(part)
    opening = bytes(content[:1])
    if len(content) <= LARGE_BYTES or opening not in (b"[", b"{") or not depth:
        return _decode(part, Any)
    await asyncio.sleep(0)
    if opening == b"{":
        return {key: await _decode_long(value, name, depth - 1) for key, value in _fields(part, name).items()}
    if bytes(content[1:64]).lstrip()[:1].isdigit():
        return _token_ids(bytes(content), name)
    items: list[msgspec.Raw] = _decode(part, list[msgspec.Raw])
    if len(items) > MAX_ITEMS:
        raise InvalidRequestError(f"{name} holds {len(items)} items; at most {MAX_ITEMS} are taken", param=name)
    values, num_bytes = [], 0
    for item in items:
        num_bytes += len(memoryview(item))
        if num_bytes > LARGE_BYTES:
            num_bytes = 0
            await asyncio.sleep(0)
        values.append(await _decode_long(item, name, depth - 1))
    return values


def _fields(content: bytes | msgspec.Raw, what: str) -> dict[str, msgspec.Raw]:
    """The fields of an object. A name becomes a value too, so an object with too many of them is told by its bytes."""
    known: msgspec.Struct = _decode(content, _KnownFields)
    num_bytes = len(memoryview(content)) - sum(len(memoryview(part)) for part in msgspec.structs.astuple(known))
    if num_bytes > MAX_UNKNOWN_BYTES:
        raise InvalidRequestError(f"{what} has {num_bytes} bytes outside the fields that are known here")
    fields: dict[str, msgspec.Raw] = _decode(content, dict[str, msgspec.Raw])
    return fields


def _token_ids(part: bytes, name: str) -> object:
    """A list that begins with a number; refused by its commas if it is too long, as no number has any."""
    num_tokens = part.count(b",") + 1
    if num_tokens > MAX_TOKEN_IDS:
        raise InvalidRequestError(f"{name} holds {num_tokens} token ids; at most {MAX_TOKEN_IDS} are taken", param=name)
    return _decode(part, Any)


def _decode(content: bytes | msgspec.Raw, kind: Any) -> Any:  # Any: a type, and what it says
    # Nothing that is being decoded is garbage, but looking through it over and over takes most of the time.
    with without_collections():
        return msgspec.json.decode(content, type=kind)
