"""What serving costs beside computing: CPU time per generated token, memory and smoothness at 32 streams.

The whole path is real (HTTP server, event streams, detokenizer, transport, step loop, scheduler, cache) except for the
executor, which sleeps. Both forms of the engine client are measured, as one of them must be the server's default.
Clients run in this process and are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.pacing_engine import MAX_MODEL_LEN, STEP_TIME_S, build_pacing_engine
from benchmarks.result_file import spread, write_result
from kvist.config.engine_config import EngineConfig
from kvist.config.model_config import ModelConfig
from kvist.config.server_config import ServerConfig
from kvist.core.request_events import EventBatch
from kvist.runtime.generation import TextGenerator
from kvist.runtime.generation_types import ModelInfo
from kvist.runtime.process_link import ProcessLink
from kvist.runtime.real_clock import RealClock
from kvist.runtime.supervised_client import SupervisedEngineClient
from kvist.runtime.thread_link import ThreadLink
from kvist.server.backend import Backend
from kvist.server.serve import run_server
from kvist.tokenization.loading import load_tokenizer
from kvist.tokenization.text_encoder import TextEncoder
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.random_model import make_random_model

EVENT = b"data: {"
FORMS = ("thread", "process")
NUM_STREAMS = 32
TOKENS_PER_STREAM = 300
REPEATS = 5
TEXT = (
    "The quick brown fox jumps over the lazy dog while a choir of frogs sings about rivers, rain and the long road "
    "home. Nobody in the valley minds the noise, for the evenings are warm and there is bread enough for all. "
)


def serve(form: str, model: Path) -> int:
    """Run the server under test until it is told to stop."""
    tokenizer = load_tokenizer(open_checkpoint(model))
    output = ",".join(map(str, tokenizer.encode(TEXT, add_special_tokens=False)))
    config = EngineConfig(model=ModelConfig(model=output))
    clock = RealClock()

    async def start_backend(listener: Callable[[EventBatch], None]) -> Backend:
        if form == "thread":
            client = SupervisedEngineClient(
                lambda: ThreadLink(lambda report: build_pacing_engine(config, report), clock), clock
            )
        else:
            command = (sys.executable, "-m", "benchmarks.pacing_engine")
            client = SupervisedEngineClient(lambda: ProcessLink(command, config), clock)
        client.add_listener(listener)
        await client.start()
        info = ModelInfo(
            name="pacing",
            served_names=("pacing",),
            max_model_len=MAX_MODEL_LEN,
            vocab_size=tokenizer.vocab_size,
            eos_token_ids=tokenizer.eos_token_ids,
            seed=0,
            default_sampling={},
        )
        encoder = TextEncoder(tokenizer, None, max_prompt_tokens=MAX_MODEL_LEN, vocab_size=tokenizer.vocab_size)
        return Backend(client=client, generator=TextGenerator(client, tokenizer, info, clock), encoder=encoder)

    server = ServerConfig(port=0, engine_client=form, log_level="warning")
    return run_server(server, start_backend, print_line=lambda line: print(line, flush=True))


class Processes:
    """A server process and its children, as the system accounts for them."""

    def __init__(self, pid: int) -> None:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._pids = [pid, *map(int, children)]

    def cpu_time_s(self) -> float:
        ticks = 0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Proportional set size: shared pages are divided among their users."""
        total = 0
        for pid in self._pids:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        return total


async def stream(port: int, name: str) -> list[float]:
    """Stream one completion; return the arrival time of each event, which as a rule carries one token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = (
        f'{{"prompt": "{name} asks", "max_tokens": {TOKENS_PER_STREAM}, "stream": true, "ignore_eos": true}}'.encode()
    )
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
    times_s: list[float] = []
    tail = data_end = b""
    while data := await reader.read(1 << 16):
        data = tail + data
        times_s += [time.monotonic()] * data.count(EVENT)
        data_end = data[-100:]
        tail = data[-(len(EVENT) - 1) :]  # an event's beginning may be cut in two, and is then counted next time
    writer.close()
    if b"[DONE]" not in data_end:
        raise RuntimeError(f"a stream broke off: {data_end!r}")
    return times_s


async def load(port: int, repeat: int) -> list[list[float]]:
    return await asyncio.gather(*(stream(port, f"client {repeat}-{index}") for index in range(NUM_STREAMS)))


@contextmanager
def running_server(form: str, model: Path) -> Iterator[tuple[int, int, float]]:
    """Start a server in `form`; yield its process id, its port and the seconds until it was ready."""
    begun_s = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.engine_overhead", "--serve", form, str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            start_s = time.monotonic() - begun_s
            yield server.pid, int(line.partition("http://127.0.0.1:")[2].split()[0]), start_s
        finally:
            server.terminate()


def measure(form: str, model: Path) -> dict[str, object]:
    """Start servers in `form` and put the load on the last one REPEATS times, after one warm-up."""
    starts_s = []
    for _ in range(REPEATS - 1):
        with running_server(form, model) as (_, _, start_s):
            starts_s.append(start_s)
    costs_us, gaps_ms, worst_ms = [], [], []
    with running_server(form, model) as (pid, port, start_s):
        starts_s.append(start_s)
        processes = Processes(pid)
        asyncio.run(load(port, -1))
        for repeat in range(REPEATS):
            before_s = processes.cpu_time_s()
            times_s = asyncio.run(load(port, repeat))
            cpu_s = processes.cpu_time_s() - before_s
            costs_us.append(cpu_s / (NUM_STREAMS * TOKENS_PER_STREAM) * 1e6)
            gaps = sorted(b - a for times in times_s for a, b in itertools.pairwise(times))
            gaps_ms.append(statistics.median(gaps) * 1e3)
            worst_ms.append(gaps[int(len(gaps) * 0.99)] * 1e3)
        memory_bytes = processes.memory_bytes()
    return {
        "cpu_per_token": spread(costs_us, "us"),
        "itl_median": spread(gaps_ms, "ms"),
        "itl_p99": spread(worst_ms, "ms"),
        "start_time": spread(starts_s, "s"),
        "memory": {"unit": "bytes", "value": memory_bytes},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, metavar=("FORM", "MODEL"), help="run the server under test")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve[0], Path(arguments.serve[1]))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.gguf"
        make_random_model("tiny-llama", "f32", model, seed=0)
        results: dict[str, object] = {form: measure(form, model) for form in FORMS}
    results["step_time"] = {"unit": "ms", "value": STEP_TIME_S * 1e3}
    results["num_streams"] = NUM_STREAMS
    path = write_result("engine_overhead", results, seed=0, num_warm_up=1, limits=LIMITS)
    print(path.read_text())
    return 0


LIMITS = (
    "one socket write per token and stream, about 40% of the server process's time; then the chain of generators from "
    "the engine client to the event stream, and the detokenizer. Encoding and decoding of the transport's frames is "
    "below 1 us a token."
)

if __name__ == "__main__":
    sys.exit(main())
