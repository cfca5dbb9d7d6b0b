"""An engine's HTTP server as a process, and one streamed completion from it (OpenAI's /v1/completions)."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers.engine import EngineFailedError

HOST = "127.0.0.1"
START_S = 180.0
TRY_AGAIN_S = 0.005
ANSWER_S = 600.0


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """When a request's first and last text came, after it was sent."""

    first_s: float
    last_s: float


class Server:
    """A server process on a free port of this machine; ends with the `with`.

    command: the program's words, given the port.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], environment: Mapping[str, str], log: Path) -> None:
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port = int(free.getsockname()[1])
        self._log = log
        self._started_s = self.now()
        with log.open("a", encoding="utf-8") as messages:
            self._process = subprocess.Popen(
                list(command(self.port)), stdout=messages, stderr=messages, env=dict(environment)
            )

    @staticmethod
    def now() -> float:
        return time.perf_counter()

    def seconds_to_first_byte(self, prompt: Sequence[int]) -> float:
        """From the start of the process to the first streamed byte of a completion, trying until it answers."""
        while self.now() - self._started_s < START_S:
            if self._process.poll() is not None:
                break
            try:
                complete(self, prompt, 1)
                return self.now() - self._started_s
            except (OSError, http.client.HTTPException, NotReadyError):
                time.sleep(TRY_AGAIN_S)
        raise EngineFailedError(f"the server did not answer within {START_S:.0f} s; see {self._log}")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NotReadyError(Exception):
    """The server answers, but not yet with text."""


def complete(server: Server, prompt: Sequence[int], num_output_tokens: int) -> StreamTimes:
    """Stream one greedy completion to its end. Raises NotReadyError for any status but 200."""
    body = {
        "prompt": list(prompt),
        "max_tokens": num_output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
    }
    connection = http.client.HTTPConnection(HOST, server.port, timeout=ANSWER_S)
    try:
        start = server.now()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise NotReadyError(f"status {response.status}: {response.read(200)!r}")
        times = [server.now() for line in response if has_text(line)]
        if not times:
            raise NotReadyError("the stream ended without text")
        return StreamTimes(times[0] - start, times[-1] - start)
    finally:
        connection.close()


def has_text(line: bytes) -> bool:
    """Whether a line of a stream carries generated text."""
    if not line.startswith(b"data: {"):
        return False
    choices = json.loads(line[6:]).get("choices") or [{}]
    return bool(choices[0].get("text"))
