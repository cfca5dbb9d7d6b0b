"""A client that leaves frees what it held, at every stage; one that does not read cannot hold the server up."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import httpx
import pytest
from tests.fakes.scripted_generation import ScriptedGenerator

from kvist.server import event_stream

Serve = Callable[..., object]


def send_request(served: object, route: str, body: dict[str, object]) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    content = json.dumps(body).encode()
    head = (
        f"POST {route} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("stage", ["queued", "generating"])
@pytest.mark.parametrize("prompts", [["a"], ["a", "b", "c"]])
def test_leaving_aborts_the_generation(serve: Serve, is_streamed: bool, stage: str, prompts: list[str]) -> None:
    generator = ScriptedGenerator()
    generator.hang_before_taking = stage == "queued"
    generator.hang_after = 1
    served = serve(generator)
    connection = send_request(served, "/v1/completions", {"prompt": prompts, "stream": is_streamed})
    assert served.eventually(lambda: generator.num_open == len(prompts))
    connection.close()
    assert served.eventually(lambda: generator.num_open == 0)
    assert served.eventually(
        lambda: (
            served.state.recorder.http_responses["/v1/completions", 499] == 1
            or served.state.recorder.http_responses["/v1/completions", 200] == 1
        )
    )
    assert httpx.get(served.url + "/health").status_code == 200


def test_leaving_in_the_middle_of_the_body_is_no_error(serve: Serve) -> None:
    served = serve()
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b'content-length: 100\r\n\r\n{"prompt": '
        )
    assert served.eventually(lambda: served.state.recorder.http_responses["/v1/completions", 499] == 1)
    assert served.generator.requests == []


def test_a_reader_that_takes_nothing_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "STALLED_READER_S", 0.3)
    generator = ScriptedGenerator(["x" * 100_000] * 1000)
    served = serve(generator)
    with send_request(served, "/v1/completions", {"prompt": "a", "stream": True}):
        assert served.eventually(lambda: generator.requests and generator.num_open == 0)


def test_a_finished_stream_leaves_the_connection_for_the_next_request(serve: Serve) -> None:
    served = serve()
    with httpx.Client(base_url=served.url) as client:
        for _ in range(3):
            answer = client.post("/v1/completions", json={"prompt": "a", "stream": True})
            assert answer.text.endswith("data: [DONE]\n\n")
    assert served.generator.num_open == 0
    assert served.eventually(lambda: served.state.recorder.http_responses["/v1/completions", 200] == 3)
