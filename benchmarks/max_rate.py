"""The largest rate of chats at which nine of ten keep their targets: kvist's server and llama-server in turn.

The same search of `kvist bench serve --find-max-rate` on the frozen load `chat` for both: the same targets in
milliseconds, and texts of their own in each step. Before it: python -m benchmarks.peers.environments

A search takes two to four minutes where nothing else runs. `--engines kvist` needs no environments.

Run: python -m benchmarks.max_rate [--engines NAME ...] [--num-prompts N] [--ttft MS] [--tpot MS]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.engine import EngineFailedError
from benchmarks.peers.peers import KVIST, PEERS, Peer, Settings, log_path
from benchmarks.peers.server import HOST, Server
from benchmarks.result_file import write_result
from kvist.config.model_config import DEFAULT_MODEL
from kvist.execution.threads import granted_cores
from kvist.weights.fetch import resolve_model

ENGINES = {"kvist": KVIST.name, "llama.cpp": "llama.cpp Q4_0"}
START_RATE = "3"
TOLERANCE = "0.12"
MAX_S = 1200.0
WARM_UP = [1 + i for i in range(32)]
FIGURES = ("slo_attainment", "request_goodput", "output_throughput", "p99_ttft_ms", "p99_tpot_ms", "failed")
LIMITS = "client and server share the machine's cores; each step is one run of the load's first requests"


def main() -> None:
    arguments = _parser().parse_args()
    settings = Settings(model=Path(resolve_model(DEFAULT_MODEL)), num_threads=granted_cores(), isa="auto")
    words = [
        "--load", "chat", "--num-prompts", str(arguments.num_prompts), "--request-rate", START_RATE, "--find-max-rate",
        "--goodput", f"ttft:{arguments.ttft:g}", f"tpot:{arguments.tpot:g}", "--rate-tolerance", TOLERANCE,
        "--tokenizer", str(settings.model),
    ]  # fmt: skip
    results: dict[str, object] = {"targets": {"ttft_ms": arguments.ttft, "tpot_ms": arguments.tpot}}
    for name in (ENGINES[engine] for engine in arguments.engines):
        results[name] = _search(next(peer for peer in PEERS if peer.name == name), settings, words)
        print(f"{name}: {results[name]}", flush=True)
    print(write_result("max_rate", results, seed=None, num_warm_up=1, limits=LIMITS))


def _search(peer: Peer, settings: Settings, words: list[str]) -> dict[str, Any]:  # Any: what JSON holds
    """What was found with the peer's server. Raises EngineFailedError if it could not be measured."""
    assert peer.server is not None
    command = peer.server(settings)
    with (
        Server(command.words, command.environment, log_path(f"{peer.name} server")) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        server.seconds_to_first_byte(WARM_UP)
        path = Path(folder) / "result.json"
        url = f"http://{HOST}:{server.port}"
        bench = [sys.executable, "-m", "kvist", "bench", "serve", "--base-url", url, "--json", str(path), *words]
        try:
            done = subprocess.run(bench, stderr=subprocess.PIPE, text=True, timeout=MAX_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise EngineFailedError(f"no rate was found within {MAX_S:.0f} s") from error
        if done.returncode != 0 or not path.exists():
            raise EngineFailedError(f"kvist bench serve failed: {done.stderr.strip()[-500:]}")
        result = json.loads(path.read_text(encoding="utf-8"))
    return {
        "rate_search": result["rate_search"],
        "at_that_rate": {name: result[name] for name in FIGURES},
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="(default: both)")
    parser.add_argument("--num-prompts", type=int, default=40, metavar="N", help="of each step (default: 40)")
    parser.add_argument("--ttft", type=float, default=1000.0, metavar="MS", help="(default: 1000)")
    parser.add_argument("--tpot", type=float, default=60.0, metavar="MS", help="(default: 60)")
    return parser


if __name__ == "__main__":
    main()
