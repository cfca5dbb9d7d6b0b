"""Writes what a benchmark measured to benchmarks/results/NAME.json, with all that is needed to judge and repeat it."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvist.bench.machine import machine_facts, source_version

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def take_no_options(description: str | None) -> None:
    """For a benchmark that has none: answer --help, refuse all else."""
    argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()


def cpu_time_s(action: Callable[[], object]) -> float:
    """CPU seconds of one call of `action`, which neither waits nor starts threads: others may use the machine too."""
    start = time.process_time()
    action()
    return time.process_time() - start


def spread(values: Sequence[float], unit: str) -> dict[str, object]:
    """One measured quantity over its repeats."""
    return {
        "unit": unit,
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "repeats": len(values),
    }


def write_result(name: str, results: dict[str, object], *, seed: int | None, num_warm_up: int, limits: str) -> Path:
    """Write `results` and where they come from. limits: what bounds these numbers, as a profile showed."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "name": name,
        "command": _command(),
        "commit": source_version(),
        "machine": machine_facts(),
        "seed": seed,
        "num_warm_up": num_warm_up,
        "limits": limits,
        "results": results,
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def _command() -> str:
    main = sys.modules["__main__"].__spec__
    program = ["-m", main.name] if main else [os.path.relpath(sys.argv[0], ROOT)]
    words = (Path(word).name if os.path.isabs(word) else word for word in sys.argv[1:])  # without its folders
    return shlex.join(["python", *program, *words])
