"""How long `kvist serve` takes from its command to an answer, and what memory its processes then hold.

Each repeat starts a server on a free port, asks for a streamed completion as soon as the server says that it is ready,
and stops it. Before the repeats one start fills the caches (page cache, packed weights, step timing), as any earlier
start of the same model does; a first start ever is measured apart, with a cache folder that holds only the model.
Memory is measured once more after 32 requests at once, of 256 tokens and 64 answered ones each.

Run: python -m benchmarks.start
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from benchmarks.result_file import spread, write_result
from kvist.config.cache_folder import cache_folder

NUM_REPEATS = 7
SEED = 20261130
NUM_REQUESTS, PROMPT_TOKENS, ANSWER_TOKENS = 32, 256, 64
STOP_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds since the command was given; resident bytes of all of its processes at their highest, once answered."""

    ready_s: float
    first_byte_s: float
    peak_resident_bytes: int
    phases: str


@contextmanager
def running_server(words: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A `kvist serve` process, ended when the block ends."""
    command = [sys.executable, "-m", "kvist", "serve", "--port", "0", *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_DEADLINE_S)
        finally:
            server.kill()
            if server.stdout is not None:
                server.stdout.close()


def measure_start(words: list[str], environment: dict[str, str]) -> Start:
    """One start, up to the first byte of generated text."""
    begun_s = time.monotonic()
    with running_server(words, environment) as server:
        address, phases = wait_until_ready(server)
        ready_s = time.monotonic() - begun_s
        with streaming(address, "Once upon a time", 8) as response:
            response.read(1)
            first_byte_s = time.monotonic() - begun_s
            response.read()
        return Start(ready_s, first_byte_s, peak_resident_bytes(server.pid), phases)


def wait_until_ready(server: subprocess.Popen[str]) -> tuple[SplitResult, str]:
    """The server's address, and what it says of its start's phases."""
    assert server.stdout is not None
    phases = ""
    for line in server.stdout:
        if line.split()[:1] == ["start"]:
            phases = " ".join(line.split()[1:])
        if " at http" in line:
            return urlsplit(line.partition(" at ")[2].split()[0]), phases
    raise RuntimeError("the server ended before it was ready")


@contextmanager
def streaming(address: SplitResult, prompt: str | list[int], max_tokens: int) -> Iterator[http.client.HTTPResponse]:
    """A completion of exactly `max_tokens` tokens, streamed."""
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0.0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.HTTPStatus.OK:
        raise RuntimeError(f"the server answered {response.status}: {response.read(500)!r}")
    yield response
    connection.close()


def measure_loaded_memory(words: list[str]) -> int:
    """Peak resident bytes after NUM_REQUESTS requests at once, nothing shared."""
    rng = random.Random(SEED)
    prompts = [[rng.randrange(100, 10_000) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_REQUESTS)]
    with running_server(words, dict(os.environ)) as server:
        address, _ = wait_until_ready(server)

        def ask(prompt: list[int]) -> None:
            with streaming(address, prompt, ANSWER_TOKENS) as response:
                response.read()

        with ThreadPoolExecutor(NUM_REQUESTS) as threads:
            list(threads.map(ask, prompts))
        return peak_resident_bytes(server.pid)


def peak_resident_bytes(pid: int) -> int:
    """The highest resident memory of a process and its children, added up; pages that they share count twice."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 + sum(peak_resident_bytes(int(child)) for child in children)
    return 0


def first_start(words: list[str]) -> Start:
    """A start whose caches hold the model's file and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        models = cache_folder() / "models"
        if models.is_dir():
            (Path(folder) / "models").symlink_to(models)
        return measure_start(words, dict(os.environ, KVIST_CACHE=folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs=argparse.REMAINDER, help="what follows `kvist serve`")
    words: list[str] = parser.parse_args().words
    first = first_start(words)
    measure_start(words, dict(os.environ))
    starts = [measure_start(words, dict(os.environ)) for _ in range(NUM_REPEATS)]
    results: dict[str, object] = {
        "ready": spread([start.ready_s for start in starts], "s"),
        "first streamed byte": spread([start.first_byte_s for start in starts], "s"),
        "first streamed byte of a first start": spread([first.first_byte_s], "s"),
        "peak resident memory": spread([start.peak_resident_bytes / 2**20 for start in starts], "MiB"),
        "peak resident memory after 32 requests": spread([measure_loaded_memory(words) / 2**20], "MiB"),
        "peak resident memory after 32 requests, int8 KV": spread(
            [measure_loaded_memory([*words, "--kv-cache-dtype", "int8"]) / 2**20], "MiB"
        ),
        "phases of the fastest": min(starts, key=lambda start: start.first_byte_s).phases,
    }
    limits = "Python's imports, in server and engine side by side; then the engine's first step"
    print(write_result("start", results, seed=SEED, num_warm_up=1, limits=limits))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
