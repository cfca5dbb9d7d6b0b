"""Writes what a benchmark measured to benchmarks/results/NAME.json, with all that is needed to judge and repeat it."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


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
        "commit": _commit(),
        "machine": _machine(),
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
    return " ".join(["python", *program, *sys.argv[1:]])


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "HEAD") + ("+changes" if changed else "")


def _machine() -> dict[str, object]:
    model = platform.processor() or platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        for line in cpu_info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "num_cores": os.cpu_count(),
        "load_average_1_min": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
