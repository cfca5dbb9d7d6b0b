"""llama.cpp by its own tools: llama-bench for one stream, llama-batched-bench for loads, llama-server else.

The tools make their own prompts and leave sampling, tokens and text out, which is to llama.cpp's advantage.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.peers.engine import EngineFailedError
from benchmarks.peers.server import Server, complete
from benchmarks.peers.works import Work
from kvist.workload.text_source import TextSource

BATCH = 2048  # logical batch; its physical one stays at its default of 512


class LlamaCpp:
    """One GGUF file under llama.cpp. programs: folder of its tools."""

    def __init__(
        self, programs: Path, model: Path, *, num_threads: int, environment: dict[str, str], version: str, log: Path
    ) -> None:
        self.version = version
        self._programs = programs
        self._model = model
        self._num_threads = num_threads
        self.environment = environment
        self._log = log
        self._peak_bytes = 0

    def run(self, work: Work, source: TextSource, repeat: int) -> float:
        if work.name == "shared_system_32":
            return self._serve_at_once(work, source, repeat)
        if work.num_requests > 1:
            return self._batched_bench(work)
        return self._bench(work)

    def peak_bytes(self) -> int:
        return self._peak_bytes

    def close(self) -> None:
        """Nothing stays between runs."""

    def server_command(self, num_slots: int, slot_tokens: int, port: int) -> list[str]:
        """llama-server with a context of its own for each of num_slots requests at once (separate KV)."""
        size = ["-np", str(num_slots), "-c", str(num_slots * slot_tokens), "-b", str(BATCH), "--no-kv-unified"]
        return [*self._command("llama-server"), *size, "--port", str(port), "--no-webui"]

    def _bench(self, work: Work) -> float:
        if work.without_prefill:
            sizes = ["-p", "0", "-n", str(work.num_output_tokens - 1), "-d", str(work.num_prompt_tokens)]
        else:
            sizes = ["-p", str(work.num_prompt_tokens), "-n", "0"]
        (row,) = self._rows([*self._command("llama-bench"), *sizes, "-b", str(BATCH), "-r", "1", "-o", "jsonl"])
        return float(row["samples_ns"][0]) * 1e-9

    def _batched_bench(self, work: Work) -> float:
        context = work.num_requests * (work.num_prompt_tokens + work.num_output_tokens)
        sizes = ["-npp", work.num_prompt_tokens, "-ntg", work.num_output_tokens, "-npl", work.num_requests]
        command = [*self._command("llama-batched-bench"), *map(str, sizes), "-c", str(context), "-b", str(BATCH)]
        (row,) = self._rows([*command, "--output-format", "jsonl"])
        return float(row["t"])

    def _serve_at_once(self, work: Work, source: TextSource, repeat: int) -> float:
        slot_tokens = work.num_prompt_tokens + work.num_output_tokens + 1
        with (
            Server(
                lambda port: self.server_command(work.num_requests, slot_tokens, port), self.environment, self._log
            ) as server,
            ThreadPoolExecutor(work.num_requests) as clients,
        ):
            prompts = work.prompts(source, repeat)
            server.seconds_to_first_byte(work.prompts(source, -1 - repeat)[0])  # loaded, and warm on a text of its own
            start = server.now()
            answers = [clients.submit(complete, server, prompt, work.num_output_tokens) for prompt in prompts]
            for answer in answers:
                answer.result()
            return server.now() - start

    def _command(self, program: str) -> list[str]:
        return [str(self._programs / program), "-m", str(self._model), "-t", str(self._num_threads)]

    def _rows(self, command: Sequence[str]) -> list[dict[str, Any]]:
        with self._log.open("a", encoding="utf-8") as messages:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=messages, env=self.environment, text=True
            )
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
            _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            raise EngineFailedError(f"{' '.join(command)} failed; see {self._log}")
        self._peak_bytes = max(self._peak_bytes, usage.ru_maxrss * 1024)
        return [json.loads(line) for line in lines if line.startswith("{")]
