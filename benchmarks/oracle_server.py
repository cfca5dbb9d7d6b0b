"""A server whose every moment is known: it answers by a schedule and notes when it wrote what. Checks clients' clocks.

It speaks OpenAI's streams with no model behind them. A request's field `oracle` overrides the server's schedule. Its
clock is the client's (CLOCK_MONOTONIC), and each chunk's text is the nanosecond at which it was written, so that a
client's error is the difference. A token of its tokenizer is a byte.

Run: python -m benchmarks.oracle_server [SCHEDULE_JSON] prints its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, cast

import httptools
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TIMER_STEP_S = 0.0005  # of the loop: what is due within it is not worth another timer
FAILURES = ("status_429", "status_500", "disconnect", "stall", "error_event", "no_end")


@dataclass(frozen=True, slots=True)
class Schedule:
    """When and what an answer's chunks are.

    says: how tokens can be counted. ids: token_ids and usage in each chunk; timings: llama-server's; usage: in the last
    chunk; nothing: not at all. failure: one of FAILURES, in place of the chunk that follows `after_chunks`.
    held: chunks wait for `release` instead of a time. max_tokens: where a request does not say.
    """

    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens_per_chunk: int = 1
    says: str = "ids"
    failure: str | None = None
    after_chunks: int = 0
    held: bool = False
    max_tokens: int = 16
    strict: bool = False  # an unknown field of a request is an error, as in OpenAI's own API
    not_ready: int = 0  # so many questions for /v1/models are answered with 503
    killed_after: int | None = None  # so many answers the process ends as by `kill -9`


@dataclass(slots=True)
class Written:
    """One request as the server saw it: its body, and (nanosecond, tokens) of each chunk."""

    body: dict[str, Any]
    chunks: list[tuple[int, int]] = field(default_factory=list)
    is_cut: bool = False  # the client left before the end


class Oracle:
    """What all connections share. written: the requests in order of their arrival."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.written: list[Written] = []
        self.held: list[_Stream] = []
        self.num_open = self.max_open = self.num_ended = 0
        self.counters: Counter[str] = Counter()
        self._num_asked = 0
        self._due: list[tuple[float, int, _Stream]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def write_at(self, time_s: float, stream: _Stream) -> None:
        """Let the stream write its next chunk then. One timer for all: thousands of them would be slow."""
        heapq.heappush(self._due, (time_s, next(self._order), stream))
        if self._timer is None or time_s < self._timer_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._due[0][0]
        self._timer = asyncio.get_running_loop().call_at(self._timer_s, self._write_due)

    def _write_due(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now_s + TIMER_STEP_S:
            stream = heapq.heappop(self._due)[2]
            if not stream.is_ended:
                stream.write_chunk()
        self._timer = None
        if self._due:
            self._set_timer()

    def release(self) -> None:
        """Let every held stream write its next chunk."""
        waiting, self.held = self.held, []
        for stream in waiting:
            stream.write_chunk()

    def is_ready(self) -> bool:
        self._num_asked += 1
        return self._num_asked > self.schedule.not_ready


class _Stream:
    """One streamed answer."""

    def __init__(self, oracle: Oracle, transport: asyncio.Transport, body: dict[str, Any], *, is_chat: bool) -> None:
        self._oracle, self._transport = oracle, transport
        self._schedule = replace(oracle.schedule, **body.get("oracle", {}))
        self._num_tokens = int(body.get("max_tokens") or self._schedule.max_tokens)
        self._num_prompt = _prompt_length(body)
        self._is_chat, self._n = is_chat, int(body.get("n") or 1)
        self._sent = 0
        self._record = Written(body)
        oracle.written.append(self._record)
        oracle.num_open += 1
        oracle.max_open = max(oracle.max_open, oracle.num_open)
        oracle.counters["prompt"] += self._num_prompt
        self._loop = asyncio.get_running_loop()
        self._next_s = self._loop.time() + self._schedule.ttft_s
        self.is_ended = False
        self._has_head = False
        self._wait()

    def cut(self) -> None:
        """The client left."""
        if self._sent < self._num_tokens:
            self._record.is_cut = True
            self._end()

    def write_chunk(self) -> None:
        schedule = self._schedule
        if schedule.failure is not None and len(self._record.chunks) >= schedule.after_chunks:
            self._fail(schedule.failure)
            return
        count = min(schedule.tokens_per_chunk, self._num_tokens - self._sent)
        self._sent += count
        is_last = self._sent >= self._num_tokens
        now_ns = time.perf_counter_ns()
        self._record.chunks.append((now_ns, count))
        payload = b"".join(self._chunk(index, f"{now_ns} ", count, is_last=is_last) for index in range(self._n))
        if is_last:
            payload += self._closing()
        self._send(payload)
        if is_last:
            self._transport.write(b"0\r\n\r\n")
            self._end()
        else:
            self._next_s += schedule.itl_s
            self._wait()

    def _wait(self) -> None:
        if self._schedule.held:
            self._oracle.held.append(self)
        else:
            self._oracle.write_at(self._next_s, self)

    def _chunk(self, index: int, text: str, count: int, *, is_last: bool) -> bytes:
        """Put together by hand: a server that is slow at this would be what is measured."""
        says = self._schedule.says
        tokens = b',"token_ids":[%s]' % b",".join([b"7"] * count) if says == "ids" else b""
        timings = b',"timings":{"predicted_n":%d,"cache_n":0}' % self._sent if says == "timings" else b""
        return (
            b'data: {"id":"oracle","object":"chunk","created":1,"model":"oracle","choices":[{"index":%d,%s%s%s}]%s}\n\n'
            % (
                index,
                (b'"delta":{"content":"%s"}' if self._is_chat else b'"text":"%s"') % text.encode(),
                b',"finish_reason":"length"' if is_last else b',"finish_reason":null',
                tokens,
                timings,
            )
        )

    def _closing(self) -> bytes:
        usage = {
            "prompt_tokens": self._num_prompt,
            "completion_tokens": self._num_tokens * self._n,
            "prompt_tokens_details": {"cached_tokens": self._num_prompt // 2},
        }
        options = self._record.body.get("stream_options") or {}
        last = b"data: [DONE]\n\n"
        if self._schedule.says == "nothing" or not options.get("include_usage"):
            return last
        return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n" + last

    def _fail(self, failure: str) -> None:
        if failure.startswith("status_"):
            self._transport.write(_plain(int(failure[7:]), {"error": {"message": "as the schedule says"}}))
        elif failure == "disconnect":
            self._transport.abort()
        elif failure == "error_event":
            self._send(b'data: {"error":{"message":"as the schedule says"}}\n\n')
            self._transport.write(b"0\r\n\r\n")
        elif failure == "no_end":
            self._transport.write(b"0\r\n\r\n")
        if failure != "stall":
            self._end()

    def _send(self, payload: bytes) -> None:
        head = b"" if self._has_head else HEAD
        self._has_head = True
        self._transport.write(b"%s%x\r\n%s\r\n" % (head, len(payload), payload))

    def _end(self) -> None:
        self._sent = self._num_tokens
        self._oracle.num_open -= 1
        self._oracle.num_ended += 1
        self.is_ended = True
        if self._oracle.num_ended == self._oracle.schedule.killed_after:
            os.kill(os.getpid(), signal.SIGKILL)


class OracleProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", b""
        self._stream: _Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._stream is not None:
            self._stream.cut()

    def on_url(self, url: bytes) -> None:
        self._url, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path = self._url.decode()
        body = json.loads(self._body) if self._body else {}
        if path.endswith("completions"):
            if self._oracle.schedule.strict and (unknown := {"return_token_ids", "ignore_eos"} & set(body)):
                self._transport.write(_plain(400, {"error": {"message": f"unknown field {min(unknown)}"}}))
                return
            self._stream = _Stream(self._oracle, self._transport, body, is_chat="chat" in path)
            return
        self._transport.write(self._answer(path, body))

    def _answer(self, path: str, body: dict[str, Any]) -> bytes:
        if path == "/v1/models":
            if not self._oracle.is_ready():
                return _plain(503, {"error": {"message": "starting"}})
            return _plain(200, {"data": [{"id": "oracle", "max_model_len": 100_000}]})
        if path == "/tokenize":
            return _plain(200, {"tokens": list(body["prompt"].encode())})
        if path == "/detokenize":
            return _plain(200, {"prompt": bytes(body["tokens"]).decode(errors="replace")})
        if path == "/metrics":
            text = f"kvist:preemptions_total 3\nkvist:prompt_tokens_total {self._oracle.counters['prompt']}\n"
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text.encode())
        return _plain(404, {"error": {"message": "there is no such route"}})


def _plain(status: int, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return (
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(content))
        + content
    )


def _prompt_length(body: dict[str, Any]) -> int:
    if "messages" in body:
        return sum(len(message["content"].encode()) for message in body["messages"])
    prompt = body.get("prompt", "")
    return len(prompt.encode()) if isinstance(prompt, str) else len(prompt)


async def start_oracle(oracle: Oracle) -> tuple[asyncio.Server, int]:
    """Listen on a free port of this machine; the server and the port."""
    server = await asyncio.get_running_loop().create_server(
        lambda: OracleProtocol(oracle), "127.0.0.1", 0, backlog=8192
    )
    return server, int(server.sockets[0].getsockname()[1])


async def _serve(oracle: Oracle) -> None:
    server, port = await start_oracle(oracle)
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


def main() -> None:
    schedule = Schedule(**json.loads(sys.argv[1])) if len(sys.argv) > 1 else Schedule()
    uvloop.run(_serve(Oracle(schedule)))


if __name__ == "__main__":
    main()
