"""Compares kvist with its peers on the same work, engine after engine, repeat after repeat, in one run.

Writes benchmarks/results/peers.json (with --isa avx2: peers_avx2.json): a row for each engine and weight format.
Before it: python -m benchmarks.peers.environments

Run: python -m benchmarks.peers.run [--isa avx2] [--only NAME ...] [--works NAME ...] [--repeats N]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.peers import KVIST, PEERS, Peer, Settings
from benchmarks.peers.report import fastest_peers, result_row
from benchmarks.peers.works import SEED, WORKS
from benchmarks.result_file import write_result
from kvist.config.model_config import DEFAULT_MODEL
from kvist.execution.threads import granted_cores
from kvist.tokenization.loading import load_tokenizer
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.fetch import resolve_model
from kvist.workload.text_source import TextSource, read_sentences

SERVER_WORKS = ("start", "online")
ONLINE_BASELINE = "llama.cpp Q4_0"  # the load's rate is a share of its capacity
LIMITS = (
    "llama.cpp's own tools measure one stream and batches, without sampling or text; all others run whole engines. "
    "transformers and CTranslate2 run static batches. Prompts are new in every repeat."
)


def main() -> None:
    arguments = _parser().parse_args()
    model = Path(arguments.model or resolve_model(DEFAULT_MODEL))
    settings = Settings(model=model, num_threads=arguments.num_threads or granted_cores(), isa=arguments.isa)
    tokenizer = load_tokenizer(open_checkpoint(model))
    source = TextSource(lambda text: tokenizer.encode(text, add_special_tokens=False), read_sentences())
    comparison = Comparison(_chosen(arguments.only, arguments.isa), settings, source)
    works = [work for work in WORKS if work.name in arguments.works]
    capacity = comparison.online_capacity_per_s(ONLINE_BASELINE) if "online" in arguments.works else None
    name = arguments.name or ("peers" if arguments.isa == "auto" else f"peers_{arguments.isa}")

    def save() -> None:
        results = _results(comparison, settings, capacity)
        print(write_result(name, results, seed=SEED, num_warm_up=1, limits=LIMITS), flush=True)

    if works:
        comparison.measure_works(works, arguments.repeats, save)
    for repeat in range(arguments.repeats):
        if "start" in arguments.works:
            comparison.repeat_start(repeat)
        if capacity is not None:
            comparison.repeat_online((KVIST.name, ONLINE_BASELINE), capacity, repeat)
        save()


def _results(comparison: Comparison, settings: Settings, capacity_per_s: float | None) -> dict[str, object]:
    measured = {name for name, _ in comparison.figures}
    peers = [peer for peer in PEERS if peer.name in measured]
    ours = [peer.name for peer in peers if peer.engine == KVIST.engine]
    rows = {peer.name: result_row(peer.name, comparison.figures, ours) for peer in peers}
    return {
        "model": settings.model.name,
        "num_threads": settings.num_threads,
        "isa": settings.isa,
        "versions": comparison.versions,
        "failures": comparison.failures,
        "online_capacity_per_s": capacity_per_s,
        "fastest_peers": fastest_peers(comparison.figures, ours),
        "rows": rows,
    }


def _chosen(only: list[str] | None, isa: str) -> list[Peer]:
    """kvist, and the peers whose names begin with one of `only`, of those that are compared on the instruction set."""
    chosen = [peer for peer in PEERS if only is None or peer.name.startswith(tuple(only))]
    able = [peer for peer in chosen if isa in peer.isas]
    return able if KVIST in able else [KVIST, *able]


def _parser() -> argparse.ArgumentParser:
    every_work = [*(work.name for work in WORKS), *SERVER_WORKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file; default: kvist's default model")
    parser.add_argument("--isa", choices=("auto", "avx2"), default="auto", help="for kvist and all peers that can")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="peers by the beginning of their names")
    parser.add_argument("--works", nargs="+", choices=every_work, default=every_work, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-threads", type=int, help="of every engine; default: the cores that the cgroup grants")
    parser.add_argument("--name", help="of the result file; default: peers, or peers_avx2")
    return parser


if __name__ == "__main__":
    main()
