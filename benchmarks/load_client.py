"""How much the load client takes and how exact its clock is, against a server whose chunks say when they were written.

Timing: 200 streams of 25 tokens a second each. A chunk's error is when the client stamped it - when the server wrote
it. Both read one clock, so it holds the way through the kernel and the wait for a core too. Capacity: 2,000 streams at
once, the client bound to one core, the server to another; tokens per second are of the time in which all streams were
open. A third setting offers more than either side can do.

Where other work runs on the machine: nice -n -15 python -m benchmarks.load_client (the result says so).

Run: python -m benchmarks.load_client [--against aiohttp httpx]; the libraries must be installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvloop

from benchmarks.result_file import ROOT, write_result
from kvist.bench.answer_reader import AnswerReader
from kvist.bench.client_run import CallState, ClientRun
from kvist.bench.http_connection import HttpServer, now_s
from kvist.bench.machine import machine_facts
from kvist.bench.prompt_writer import PromptForm, PromptWriter
from kvist.bench.request_body import BodyWriter
from kvist.metrics.percentiles import mean, percentile
from kvist.workload.trace_record import TextPart, TraceRecord

PERCENTS = (50.0, 90.0, 99.0)
STARTED_S = 1.0  # in which all requests are sent
OPENED_S = 2.0  # from a request to its first token, so that all streams are open before


@dataclass(frozen=True, slots=True)
class Setting:
    """num_streams answers of num_tokens tokens, each token a chunk, every itl_s. one_core: bind client and server."""

    num_streams: int
    num_tokens: int
    itl_s: float
    one_core: bool

    @property
    def offered_per_s(self) -> float:
        return self.num_streams / self.itl_s


TIMING = Setting(200, 120, 0.04, one_core=False)
CAPACITY = (
    Setting(2000, 60, 0.1, one_core=True),
    Setting(2000, 60, 0.08, one_core=True),
    Setting(2000, 100, 0.05, one_core=True),
)


class ByteCodec:
    def encode(self, text: str) -> Sequence[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def oracle(setting: Setting) -> Iterator[int]:
    """The server's port."""
    schedule = json.dumps({"ttft_s": OPENED_S, "itl_s": setting.itl_s})
    words = [sys.executable, "-m", "benchmarks.oracle_server", schedule]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        cores = sorted(os.sched_getaffinity(0))
        if setting.one_core and len(cores) > 1:
            os.sched_setaffinity(process.pid, cores[1:])
            os.sched_setaffinity(0, cores[:1])
        try:
            yield port
        finally:
            os.sched_setaffinity(0, cores)
            process.communicate()


async def run_client(port: int, setting: Setting) -> dict[str, Any]:
    server = HttpServer(f"http://127.0.0.1:{port}", {})
    records = [
        TraceRecord(
            index=index,
            arrival_s=index * STARTED_S / setting.num_streams,
            prompt=(TextPart("stream", 0, 8),),
            num_output_tokens=setting.num_tokens,
        )
        for index in range(setting.num_streams)
    ]
    bodies = BodyWriter(PromptWriter(ByteCodec(), PromptForm.TOKENS), {"model": "oracle"})
    run = await ClientRun(server=server, path="/v1/completions", records=records, bodies=bodies).run()
    server.close()
    assert all(call.state is CallState.COMPLETED for call in run.calls)
    pieces = [piece for call in run.calls for piece in call.reader.samples[0].pieces]
    streams = [[piece[0] for piece in call.reader.samples[0].pieces] for call in run.calls]
    lags = sorted(1e3 * (call.sent_s - call.due_s) for call in run.calls if call.sent_s is not None)
    return {
        **_figures(setting, [1e3 * time_s - int(text) / 1e6 for time_s, text, _ in pieces], streams, run.cpu_s),
        "sent_late_ms": _percentiles(lags),
        "client_cpu_share_over_all": run.cpu_s / run.duration_s,
    }


def _figures(
    setting: Setting, errors_ms: list[float], streams: Sequence[Sequence[float]], cpu_s: float
) -> dict[str, Any]:
    """streams: of each, the times at which its tokens came."""
    seconds = max(times[-1] for times in streams) - min(times[0] for times in streams)
    return {
        "streams_at_once": setting.num_streams,
        "tokens": len(errors_ms),
        "tokens_per_s_offered": setting.offered_per_s,
        "tokens_per_s_received": _rate_while_all_are_open(streams),
        "client_cpu_us_per_token": 1e6 * cpu_s / len(errors_ms),
        "client_cores_while_tokens_came": cpu_s / seconds,
        "tokens_per_s_of_a_whole_core": len(errors_ms) / cpu_s,
        "chunk_time_error_ms": _percentiles(sorted(errors_ms)),
    }


def _rate_while_all_are_open(streams: Sequence[Sequence[float]]) -> float:
    """Tokens per second from the last stream's first token to the first stream's last one."""
    begin_s, end_s = max(times[0] for times in streams), min(times[-1] for times in streams)
    return sum(begin_s < time_s <= end_s for times in streams for time_s in times) / (end_s - begin_s)


def _percentiles(rising: list[float]) -> dict[str, float]:
    return {
        "mean": mean(rising),
        **{f"p{percent:g}": percentile(rising, percent) for percent in PERCENTS},
        "max": rising[-1],
    }


async def run_library(name: str, port: int, setting: Setting) -> dict[str, Any]:
    """The same streams with a library in place of our connection, and with our reader of events."""
    url = f"http://127.0.0.1:{port}/v1/completions"
    body = json.dumps({"prompt": [1] * 8, "max_tokens": setting.num_tokens, "stream": True}).encode()
    readers = [AnswerReader() for _ in range(setting.num_streams)]

    async def all_of(one: Callable[[AnswerReader], Awaitable[None]]) -> float:
        async def later(index: int) -> None:
            await asyncio.sleep(index * STARTED_S / setting.num_streams)
            await one(readers[index])

        before_s = _cpu_s()
        await asyncio.gather(*(later(index) for index in range(setting.num_streams)))
        return _cpu_s() - before_s

    if name == "aiohttp":
        import aiohttp  # type: ignore[import-not-found]

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def with_aiohttp(reader: AnswerReader) -> None:
                async with session.post(url, data=body) as response:
                    async for data in response.content.iter_any():
                        reader.feed(now_s(), data)

            cpu_s = await all_of(with_aiohttp)
    else:
        import httpx

        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=None) as client:

            async def with_httpx(reader: AnswerReader) -> None:
                async with client.stream("POST", url, content=body) as response:
                    async for data in response.aiter_raw():
                        reader.feed(now_s(), data)

            cpu_s = await all_of(with_httpx)
    pieces = [piece for reader in readers for piece in reader.samples[0].pieces]
    streams = [[piece[0] for piece in reader.samples[0].pieces] for reader in readers]
    return _figures(setting, [1e3 * time_s - int(text) / 1e6 for time_s, text, _ in pieces], streams, cpu_s)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", nargs="*", choices=("aiohttp", "httpx"), default=[])
    arguments = parser.parse_args()
    results: dict[str, object] = {
        "load_average_before": machine_facts()["load_average_1_min"],
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    }
    for name, setting in (("timing", TIMING), *((f"capacity_{s.offered_per_s:.0f}", s) for s in CAPACITY)):
        with oracle(setting) as port:
            results[name] = uvloop.run(run_client(port, setting))
        print(name, json.dumps(results[name], indent=1), flush=True)
    for library in arguments.against:
        with oracle(TIMING) as port:
            results[f"timing_{library}"] = uvloop.run(run_library(library, port, TIMING))
        print(library, json.dumps(results[f"timing_{library}"], indent=1), flush=True)
    limits = "the kernel's sockets, and the wait for a core where other work runs on the machine"
    print(write_result("load_client", results, seed=None, num_warm_up=0, limits=limits))


if __name__ == "__main__":
    main()
