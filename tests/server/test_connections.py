"""Raw connections: what is no HTTP, or odd HTTP, gets a clean answer and leaves the server as it was."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import httpx
import pytest

from kvist.server import http_protocol

Serve = Callable[..., object]
BODY = b'{"prompt": "a"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def exchange(served: object, data: bytes, *, until: bytes = b"") -> bytes:
    """Send `data`; return what comes back until the peer closes, or until `until` has been seen."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(100)
        connection.sendall(data)
        answer = b""
        while not (until and until in answer):
            part = connection.recv(65536)
            if not part:
                break
            answer += part
        return answer


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["garbage", "tls", "path", "negative length", "two lengths", "length and chunks"],
)
def test_what_is_no_http_gets_a_400_in_the_shape_of_all_errors(serve: Serve, data: bytes) -> None:
    served = serve()
    head, _, body = exchange(served, data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert httpx.get(served.url + "/health").status_code == 200


def test_a_head_that_is_too_long_is_refused(serve: Serve) -> None:
    endless = b"GET /health HTTP/1.1\r\n" + b"x-more: y\r\n" * (http_protocol.MAX_HEAD_BYTES // 10)
    assert b"longer than" in exchange(serve(), endless)


def test_a_head_that_never_ends_is_hung_up_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.2)
    assert exchange(serve(), b"GET /health HTTP/1.1\r\nhost:") == b""


def test_a_body_that_never_ends_is_hung_up_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "BODY_TIMEOUT_S", 0.2)
    served = serve()
    assert exchange(served, HEAD + b"content-length: 100\r\n\r\n{") == b""
    assert served.generator.requests == []


def test_a_body_declared_too_large_is_refused_before_it_is_sent(serve: Serve) -> None:
    answer = exchange(serve(), HEAD + b"content-length: 999999999999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer


def test_bodies_in_chunks_and_after_100_continue_are_read(serve: Serve) -> None:
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    assert b"Hello wide world" in exchange(serve(), chunked, until=b'"usage"')
    expected = HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
    answer = exchange(serve(), expected, until=b'"usage"')
    assert answer.startswith(b"HTTP/1.1 100 Continue")
    assert b"Hello wide world" in answer


def test_requests_sent_at_once_are_answered_one_by_one(serve: Serve) -> None:
    one = HEAD + b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
    last = one.replace(b"host: x", b"host: x\r\nconnection: close")
    assert exchange(serve(), one + one + last).count(b"Hello wide world") == 3


def test_an_offer_to_upgrade_is_passed_over(serve: Serve) -> None:
    offer = b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    assert exchange(serve(), offer, until=b"}").startswith(b"HTTP/1.1 200 ")
