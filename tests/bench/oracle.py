"""The oracle server on the test's own loop, and runs against it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.oracle_server import Oracle, Schedule, start_oracle

from kvist.bench.client_run import ClientRun
from kvist.bench.http_connection import HttpServer
from kvist.bench.prompt_writer import PromptForm, PromptWriter
from kvist.bench.request_body import BodyWriter
from kvist.workload.trace_record import AnswerPart, TextPart, TraceRecord


class ByteCodec:
    """The oracle's tokenizer: a token is a byte."""

    def encode(self, text: str) -> Sequence[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")


@asynccontextmanager
async def oracle_server(**schedule: Any) -> AsyncIterator[tuple[Oracle, HttpServer]]:
    oracle = Oracle(Schedule(**schedule))
    listener, port = await start_oracle(oracle)
    server = HttpServer(f"http://127.0.0.1:{port}", {})
    try:
        yield oracle, server
    finally:
        server.close()
        listener.close()
        await asyncio.sleep(0)


def record(index: int = 0, arrival_s: float = 0.0, *, num_output_tokens: int = 4, **fields: Any) -> TraceRecord:
    prompt = fields.pop("prompt", (TextPart(f"t/{index}", 0, 12),))
    return TraceRecord(index=index, arrival_s=arrival_s, prompt=prompt, num_output_tokens=num_output_tokens, **fields)


def follow_up(index: int, after: int, pause_s: float = 0.0) -> TraceRecord:
    prompt = (TextPart(f"t/{after}", 0, 12), AnswerPart(after), TextPart(f"t/{index}", 0, 5))
    return record(index, pause_s, prompt=prompt, after=after)


def client_run(
    server: HttpServer,
    records: Sequence[TraceRecord],
    form: PromptForm = PromptForm.TOKENS,
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> ClientRun:
    path = "/v1/chat/completions" if form is PromptForm.MESSAGES else "/v1/completions"
    bodies = BodyWriter(PromptWriter(ByteCodec(), form), {"model": "oracle", **(fields or {})})
    return ClientRun(server=server, path=path, records=records, bodies=bodies, **options)


async def until(condition: Any) -> None:
    """Let the loop turn until the condition holds; the test's own time limit ends it if it never does."""
    while not condition():
        await asyncio.sleep(0.001)
