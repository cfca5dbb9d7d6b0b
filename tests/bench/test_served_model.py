"""What a server offers is found out, and what it refuses is left away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.bench.oracle import oracle_server

from kvist.bench import served_model
from kvist.bench.answer_reader import TokenCount
from kvist.bench.http_connection import HttpServer
from kvist.bench.served_model import ServedModel, choose_model, probe, wait_until_ready
from kvist.core.errors import ConfigError, EngineUnavailableError


def found(path: str = "/v1/completions", **schedule: Any) -> ServedModel:
    async def scenario() -> ServedModel:
        async with oracle_server(**schedule) as (_, server):
            models = await wait_until_ready(server, 30)
            return await probe(server, path, choose_model(models, None), {}, ignore_eos=True)

    return asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("says", "count"),
    [
        ("ids", TokenCount.IDS),
        ("timings", TokenCount.RUNNING),
        ("usage", TokenCount.TOTAL),
        ("nothing", TokenCount.TEXT),
    ],
)
def test_tokens_are_counted_by_the_best_that_is_offered(says: str, count: TokenCount, path: str) -> None:
    model = found(path, says=says)
    assert (model.name, model.max_model_len, model.token_count) == ("oracle", 100_000, count)


def test_fields_that_a_server_refuses_are_not_sent() -> None:
    model = found(strict=True, says="usage")
    assert dict(model.fields) == {"stream_options": {"include_usage": True}}
    assert not model.ignores_eos


def test_a_server_that_starts_slowly_is_waited_for() -> None:
    assert found(not_ready=2).name == "oracle"


def test_a_server_that_never_gets_ready_is_given_up() -> None:
    async def scenario() -> None:
        async with oracle_server(not_ready=10**9) as (_, server):
            with pytest.raises(EngineUnavailableError, match=r"not ready within 0\.1 s: status 503: starting"):
                await wait_until_ready(server, 0.1)

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", ["status_500", "error_event"])
def test_a_server_that_cannot_answer_is_refused(failure: str) -> None:
    with pytest.raises(EngineUnavailableError, match="as the schedule says"):
        found(failure=failure)


def test_a_model_is_chosen_by_name() -> None:
    models = [{"id": "a"}, {"id": "b", "meta": {"n_ctx": 7}}]
    assert choose_model(models, "b") == ("b", 7)
    assert choose_model(models, None) == ("a", None)
    for bad in ([], models):
        with pytest.raises(ConfigError):
            choose_model(bad, "c")


class Canned(asyncio.Protocol):
    """Gives each connection these bytes, one for each packet that comes, and then hangs."""

    def __init__(self, answers: tuple[bytes, ...]) -> None:
        self._answers = list(answers)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answers:
            self._transport.write(self._answers.pop(0))


async def _answering(*answers: bytes) -> tuple[asyncio.Server, HttpServer]:
    listener = await asyncio.get_running_loop().create_server(lambda: Canned(answers), "127.0.0.1", 0)
    return listener, HttpServer(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", {})


def _ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((), "not ready within 0.2 s: it does not answer"),
        ((_ok(b"<html>"),) * 9, "no JSON"),
        ((_ok(b"[1, 2]"),) * 9, "no list of models"),
        ((_ok(b'{"data": [5]}'),) * 9, "no list of models"),
        ((b"SSH-2.0\r\n",), "no HTTP"),
    ],
)
def test_what_is_no_server_of_models_is_given_up_in_time(
    answers: tuple[bytes, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answers:  # they are waited for, however busy the machine is
        monkeypatch.setattr(served_model, "SHORTEST_TRY_S", 100.0)

    async def scenario() -> None:
        listener, server = await _answering(*answers)
        try:
            with pytest.raises(EngineUnavailableError, match=message):
                await wait_until_ready(server, 0.2)
        finally:
            server.close()
            listener.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("answers", [(), (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",)])
def test_a_server_that_never_answers_a_prompt_is_given_up(answers: tuple[bytes, ...]) -> None:
    async def scenario() -> None:
        listener, server = await _answering(*answers)
        try:
            with pytest.raises(EngineUnavailableError, match=r"no answer within 0\.1 s"):
                await probe(server, "/v1/completions", ("m", None), {}, ignore_eos=True, timeout_s=0.1)
        finally:
            server.close()
            listener.close()

    asyncio.run(scenario())
