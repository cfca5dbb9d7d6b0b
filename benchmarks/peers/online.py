"""Online load over HTTP: requests of the frozen load `chat` at their own times, by `kvist bench serve`.

The client is the product's, so figures of engines here and of users elsewhere are of one kind.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.engine import EngineFailedError
from benchmarks.peers.server import HOST, Server
from benchmarks.peers.works import SEED

LOAD = "chat"
NUM_REQUESTS = 48  # the load's first ones: the rest would take minutes
MAX_TOKENS = 1500 + 256  # of a prompt and its answer, as the load bounds them
MAX_S = 600.0


@dataclass(frozen=True, slots=True)
class OnlineFigures:
    """ttft_p99_s: time to first token; tpot_mean_ms: time per output token after the first."""

    ttft_p99_s: float
    ttft_mean_s: float
    tpot_mean_ms: float
    makespan_s: float


def capacity_per_s(server: Server, tokenizer: Path) -> float:
    """Requests per second that the server completes when all come at once."""
    result = _bench(server, tokenizer, ["--request-rate", "inf", "--seed", str(SEED - 1)])
    return float(result["completed"]) / float(result["duration"])


def send(server: Server, tokenizer: Path, capacity: float, repeat: int) -> OnlineFigures:
    """Send the load at its rate, a share of `capacity` in requests per second; texts and times are of this repeat."""
    result = _bench(server, tokenizer, ["--capacity", f"{capacity:.6g}", "--seed", str(SEED + repeat)])
    return OnlineFigures(
        ttft_p99_s=result["p99_ttft_ms"] / 1e3,
        ttft_mean_s=result["mean_ttft_ms"] / 1e3,
        tpot_mean_ms=result["mean_tpot_ms"],
        makespan_s=result["duration"],
    )


def _bench(server: Server, tokenizer: Path, words: list[str]) -> Mapping[str, Any]:  # Any: what JSON holds
    """The result of a run. Raises EngineFailedError if any request failed: its time would be in no figure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [
            sys.executable, "-m", "kvist", "bench", "serve", "--base-url", f"http://{HOST}:{server.port}",
            "--load", LOAD, "--num-prompts", str(NUM_REQUESTS), "--tokenizer", str(tokenizer), "--goodput", "none",
            "--json", str(path), *words,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_S, check=False)
        if done.returncode != 0 or not path.exists():
            raise EngineFailedError(f"kvist bench serve failed: {done.stderr.strip()[-500:]}")
        result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result["failed"] or not result["completed"]:
        raise EngineFailedError(f"{result['failed']} of {NUM_REQUESTS} requests failed: {result['errors_by_kind']}")
    return result
