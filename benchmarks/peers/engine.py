"""An engine as the comparison sees it, and the kind that runs as a worker in its own environment (workers/)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.works import Prompts, Work
from kvist.workload.text_source import TextSource

WORKERS = Path(__file__).parent / "workers"
END_S = 30.0  # to end after its input has ended


class EngineFailedError(Exception):
    """An engine ended or did not do what it was asked."""


class Engine(Protocol):
    """One engine with one weight format, loaded."""

    version: str

    def run(self, work: Work, source: TextSource, repeat: int) -> float:
        """Seconds that count for `work` on the texts of this repeat. Raises EngineFailedError."""

    def peak_bytes(self) -> int:
        """Most memory that was resident in any run so far."""

    def close(self) -> None:
        """End its processes."""


class WorkerEngine:
    """An engine behind a worker script. Loads at once; raises EngineFailedError if it cannot."""

    def __init__(
        self, python: Path, script: str, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> None:
        self._log = log
        self._peak_bytes = 0
        with log.open("w", encoding="utf-8") as messages:
            self._process = subprocess.Popen(
                [python, WORKERS / script, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                env={**os.environ, **environment},
                text=True,
            )
        try:
            self.version = str(self._answer()["ready"])
        except EngineFailedError:
            self.close()
            raise

    def run(self, work: Work, source: TextSource, repeat: int) -> float:
        seconds = self._seconds(work.prompts(source, repeat), work.num_output_tokens)
        if work.without_prefill:
            seconds -= self._seconds(work.prompts(source, repeat, part="prefill"), 1)
        return seconds

    def peak_bytes(self) -> int:
        return self._peak_bytes

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _seconds(self, prompts: Prompts, num_output_tokens: int) -> float:
        assert self._process.stdin is not None
        line = json.dumps({"prompts": prompts, "num_output_tokens": num_output_tokens})
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineFailedError(f"the worker has ended; see {self._log}") from None
        answer = self._answer()
        expected = len(prompts) * num_output_tokens
        if answer["num_output_tokens"] != expected:
            raise EngineFailedError(f"asked for {expected} output tokens, got {answer['num_output_tokens']}")
        self._peak_bytes = max(self._peak_bytes, answer["peak_bytes"])
        return float(answer["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineFailedError(f"the worker has ended; see {self._log}")
        answer: dict[str, Any] = json.loads(line)
        return answer
