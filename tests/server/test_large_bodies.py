"""Large bodies: decoded with pauses for others, refused early where they hold too many values, else what they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from kvist.core.errors import InvalidRequestError
from kvist.server.body_decoder import LARGE_BYTES, decode_object

Call = Callable[..., httpx.Response]
TEXT = "some words, and others; " * 500


def decoded(fields: object) -> object:
    body = json.dumps(fields).encode()
    assert len(body) > LARGE_BYTES
    return asyncio.run(decode_object(body))


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": TEXT * 40, "n": 2, "stop": None, "logit_bias": {"5": 1.5}},
        {"prompt": [TEXT] * 40, "user": TEXT},
        {"prompt": list(range(60_000)), "metadata": {"a": [None, {"b": True}]}},
        {"prompt": [list(range(60_000)), [1, 2], TEXT]},
        {"messages": [{"role": "user", "content": TEXT * (1 + 30 * (i == 7))} for i in range(20)]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT, "x": [[]]}] * 40, "name": "n"}]},
        {"tokens": list(range(60_000))},
        {"prompt": [[[[TEXT] * 20] * 2]], "messages": {"content": TEXT * 30}, "unknown": TEXT},
        {"prompt": [-1, None, *["x"] * 100_000][:20_000], "user": TEXT * 30},
    ],
    ids=range(9),
)
def test_a_large_body_says_what_a_small_one_would(fields: object) -> None:
    assert decoded(fields) == fields


def test_others_have_their_turn_while_a_large_body_is_decoded() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": TEXT}] * 400}).encode()

    async def run() -> int:
        num_turns, decoding = 0, asyncio.create_task(decode_object(body))
        while not decoding.done():
            await asyncio.sleep(0)
            num_turns += 1
        return num_turns

    assert asyncio.run(run()) >= len(body) // (2 * LARGE_BYTES)


@pytest.mark.parametrize(
    ("route", "body", "message", "param"),
    [
        ("/v1/chat/completions", b'{"messages":[' + b"{}," * 300_000 + b"{}]}", "300001 items", "messages"),
        ("/v1/completions", b'{"prompt":[' + b"[]," * 300_000 + b"[]]}", "300001 items", "prompt"),
        ("/v1/completions", b'{"prompt":[' + b"1," * 1_100_000 + b"1]}", "1100001 token ids", "prompt"),
        ("/detokenize", b'{"tokens":[' + b"1," * 1_100_000 + b"1]}", "1100001 token ids", "tokens"),
        ("/v1/completions", b'{"prompt":"a","stop":[' + b'"a",' * 600_000 + b'"a"]}', "2400005 bytes", "stop"),
        (
            "/v1/chat/completions",
            b'{"messages":[{"role":"user","content":[' + b"{}," * 100_000 + b"{}]}]}",
            "100001 items",
            "messages",
        ),
        (
            "/v1/chat/completions",
            json.dumps(
                {"messages": [{"role": "user", "content": "a", **{f"k{i}": 1 for i in range(50_000)}}]}
            ).encode(),
            "messages has",
            None,
        ),
        ("/v1/completions", json.dumps({f"k{i}": 1 for i in range(50_000)}).encode(), "bytes outside", None),
    ],
    ids=["messages", "prompts", "ids", "tokens", "stop", "parts", "keys", "fields"],
)
def test_more_values_than_any_request_needs_are_refused_by_number(
    call: Call, route: str, body: bytes, message: str, param: str | None
) -> None:
    answer = call("POST", route, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize("content", [b"[%s]", b'"%s"', b'{"prompt": ["a" %s]}', b'{"prompt": [[1 %s]]}', b'{"a": %s'])
def test_a_large_body_that_is_no_json_object_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="JSON"):
        asyncio.run(decode_object(content % (b"1" * LARGE_BYTES)))


def test_deep_nesting_is_refused_also_in_a_large_body() -> None:
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        asyncio.run(decode_object(b'{"prompt":' + b"[" * LARGE_BYTES + b"]" * LARGE_BYTES + b"}"))
