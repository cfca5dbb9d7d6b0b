"""Plans for this machine, and what their servers then do: profile, plan, the printed server, the printed client.

For each load: one `kvist plan` for one host, by one profile of the machine; then its server under its client, at the
planned rate and at 1.5 times that, and beside it, at the planned rate, the server without options. Short profiles
before and after each run predict it a second time: what is left then is not the machine's drift. Parts are kept in
FOLDER and made when missing.

Run: python -m benchmarks.plan_on_cpu FOLDER [PART ...]     parts: profile, plan/LOAD, run/LOAD/SETUP/REPEAT, result
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.result_file import write_result
from kvist.bench.fidelity.disturbance import read_cpu_times
from kvist.config.cluster_config import ClusterConfig
from kvist.config.load_cluster import parse_cluster
from kvist.costmodel.profile_table import ProfileModel, parse_profile
from kvist.costmodel.step_work import StepWork
from kvist.planner.plan_load import draws_of_load
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.simulated_benchmark import simulated_benchmark
from kvist.workload.load_file import shipped_loads

Document = dict[str, Any]  # Any: what JSON holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """num_prompts: as many as take about half a minute. slo: one that neither all candidates keep nor none."""

    num_prompts: int
    slo: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """is_planned: the printed server; else one without options. factor: of the planned rate."""

    is_planned: bool
    factor: float


CASES = {
    "chat": Case(num_prompts=80, slo="ttft=1s,tpot=60ms,attainment=0.9"),
    "retrieval": Case(num_prompts=50, slo="ttft=2s,tpot=80ms,attainment=0.9"),
}
SETUPS = {
    "planned": Setup(is_planned=True, factor=1.0),
    "overload": Setup(is_planned=True, factor=1.5),
    "default": Setup(is_planned=False, factor=1.0),
}
REPEATS = 2
METRICS = (
    "mean_ttft_ms", "median_ttft_ms", "p90_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "p90_tpot_ms",
    "output_throughput", "request_throughput", "request_goodput", "slo_attainment", "cache_hit_share", "preemptions",
)  # fmt: skip
PORT = 21_480


def kvist(*words: str) -> list[str]:
    return [sys.executable, "-m", "kvist", *words]


def make(part: str, folder: Path) -> None:
    match part.split("/"):
        case ["profile"]:
            subprocess.run(kvist("profile", "--output", str(folder / "profile.json")), check=True)
        case ["plan", load]:
            _plan(load, folder)
        case ["run", load, setup, _]:
            _run(part, load, SETUPS[setup], folder)
        case ["result"]:
            _result(folder)
        case _:
            raise SystemExit(f"no part is called {part}")


def _plan(load: str, folder: Path) -> None:
    case = CASES[load]
    words = [
        "plan", "--profile", str(folder / "profile.json"), "--hosts", "1", "--workload", load,
        "--num-prompts", str(case.num_prompts), "--slo", case.slo, "--json", str(folder / f"plan-{load}.json"),
    ]  # fmt: skip
    subprocess.run(kvist(*words), check=True, stdout=subprocess.DEVNULL)


def _run(part: str, load: str, setup: Setup, folder: Path) -> None:
    """Profile shortly, serve, drive, profile again, and predict what was driven."""
    name = part.replace("/", "-")
    measured = folder / f"{name}-measured.json"
    before, after = (folder / f"{name}-{when}.json" for when in ("before", "after"))
    _profile(before)
    plan = _read(folder / f"plan-{load}.json")
    line = plan["commands"]["serve"]["mixed"] if setup.is_planned else f"kvist serve {plan['model']}"
    log = folder / f"{name}.log"
    with log.open("w") as file:
        server = subprocess.Popen(kvist(*shlex.split(line)[1:], "--port", str(PORT)), stdout=file, stderr=file)
        try:
            shares = _drive(plan, setup, measured)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    _profile(after)
    config = parse_cluster(plan["config"], "the plan").config
    if not setup.is_planned:
        config = _as_started(config, log.read_text())
    found = {
        "server": line,
        "rate": setup.factor * plan["winner"]["rate"],
        "measured": _metrics(_read(measured)),
        "client_cpu_share": _read(measured)["client_cpu_share"],
        "machine": shares,
        "predicted": _predicted(config, plan, load, setup, [folder / "profile.json"]),
        "predicted_by_profiles_beside": _predicted(config, plan, load, setup, [before, after]),
        "slower_than_planned": _slowness(folder / "profile.json", [before, after]),
    }
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1))
    sys.stderr.write(f"{part}: {json.dumps(found['measured'])}\n{' ' * len(part)}  {json.dumps(found['predicted'])}\n")


def _drive(plan: Document, setup: Setup, result: Path) -> dict[str, float]:
    """Run the printed client, `factor` times as fast. Shares of the machine: busy, and taken by its host."""
    words = shlex.split(plan["commands"]["drive"])[1:]
    pace = words.index("--time-scale") + 1
    words[pace] = repr(float(words[pace]) / setup.factor)
    begun_s, before = time.monotonic(), read_cpu_times()
    subprocess.run(
        kvist(*words, "--base-url", f"http://127.0.0.1:{PORT}", "--json", str(result)),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after, num_cores = read_cpu_times(), os.cpu_count() or 1
    machine_s = (time.monotonic() - begun_s) * num_cores
    if None in (before.steal_s, after.steal_s, before.busy_s, after.busy_s):
        return {}
    return {
        "busy_share": ((after.busy_s or 0.0) - (before.busy_s or 0.0)) / machine_s,
        "stolen_share": ((after.steal_s or 0.0) - (before.steal_s or 0.0)) / machine_s,
    }


def _as_started(config: ClusterConfig, log: str) -> ClusterConfig:
    """The cluster with what a server without options chose for itself, as it says when it starts."""
    step = re.search(r"step +at most (\d+) tokens of (\d+) requests", log)
    pool = re.search(r"KV pool .*?(\d+) tokens", log)
    if step is None or pool is None:
        raise SystemExit(f"the server did not say what it chose:\n{log}")
    group = replace(
        config.groups[0],
        policy="chunked_prefill",
        max_num_batched_tokens=int(step[1]),
        max_num_seqs=int(step[2]),
        kv_cache_tokens=int(pool[1]),
        enable_prefix_caching=True,
    )
    return replace(config, groups=(group,))


class MeanTimes:
    """A StepTimeModel of the mean of several profiles' predictions."""

    def __init__(self, profiles: Sequence[Path]) -> None:
        self.models = [ProfileModel(parse_profile(path.read_bytes(), str(path))) for path in profiles]

    def predict_s(self, work: StepWork) -> float:
        return fmean(model.predict_s(work) for model in self.models)

    def margin_s(self, work: StepWork) -> float:
        return 0.0


def _profile(path: Path) -> None:
    subprocess.run(kvist("profile", "--quick", "--output", str(path)), check=True, stdout=subprocess.DEVNULL)


def _slowness(planned: Path, beside: Sequence[Path]) -> float:
    """How long steps take beside a run, as multiples of what the plan's profile says of the same steps."""
    first, later = MeanTimes([planned]), MeanTimes(beside)
    return fmean(later.predict_s(point.work) / first.predict_s(point.work) for point in later.models[0].table.points)


def _predicted(config: ClusterConfig, plan: Document, load: str, setup: Setup, profiles: Sequence[Path]) -> Document:
    model = MeanTimes(profiles)
    drawn = draws_of_load(shipped_loads().load(load), num_draws=1, num_requests=CASES[load].num_prompts)
    records = drawn.at_rate(setup.factor * plan["winner"]["rate"])
    result = simulate(config, records, {group.name: model for group in config.groups})
    return _metrics(simulated_benchmark(result, config, {}))


def _metrics(document: Document) -> Document:
    return {name: document[name] for name in METRICS}


def _read(path: Path) -> Document:
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    return document


def _result(folder: Path) -> None:
    results: dict[str, object] = {}
    for load, case in CASES.items():
        plan = _read(folder / f"plan-{load}.json")
        runs = {
            setup: [
                _read(path)
                for number in range(1, REPEATS + 1)
                if (path := folder / f"run-{load}-{setup}-{number}.json").exists()
            ]
            for setup in SETUPS
        }
        kept = ("command", "candidates", "simulations", "winner", "error_bar", "commands")
        results[load] = {
            "slo": case.slo,
            "plan": {name: plan[name] for name in kept},
            "repeats": {setup: len(found) for setup, found in runs.items()},
            "summary": {setup: _summary(found) for setup, found in runs.items() if found},
            "runs": runs,
        }
    results["profile"] = {
        name: _read(folder / "profile.json")[name] for name in ("model", "machine", "error", "drift", "engine")
    }
    path = write_result(
        "plan_on_cpu",
        results,
        seed=shipped_loads().load("chat").seed,
        num_warm_up=2,
        limits=(
            "the machine's drift: its steps vary by half within minutes, and short profiles meet other minutes than "
            "runs do; server and client, which share the cores with the engine's threads and are in no profile"
        ),
    )
    sys.stdout.write(json.dumps({load: results[load]["summary"] for load in CASES}, indent=1) + f"\n{path}\n")  # type: ignore[index]


def _summary(runs: list[Document]) -> Document:
    """Each metric: measured (mean and range over repeats), predicted, and how far that is off, as shares."""
    summary: Document = {}
    for name in METRICS:
        measured = [run["measured"][name] for run in runs]
        mean = sum(measured) / len(measured)
        row: Document = {"measured": mean, "least": min(measured), "most": max(measured)}
        for kind in ("predicted", "predicted_by_profiles_beside"):
            value = sum(run[kind][name] for run in runs) / len(runs)
            row |= {kind: value, f"{kind}_off_by": value / mean - 1.0 if mean else None}
        summary[name] = row
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="keeps the parts")
    parser.add_argument("parts", nargs="*", metavar="PART", help="to make anew; default: all that are missing")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    runs = [f"run/{load}/{setup}/{n}" for n in range(1, REPEATS + 1) for load in CASES for setup in SETUPS]
    for part in arguments.parts or ["profile", *(f"plan/{load}" for load in CASES), *runs, "result"]:
        if arguments.parts or not (arguments.folder / f"{part.replace('/', '-')}.json").exists():
            make(part, arguments.folder)


if __name__ == "__main__":
    main()
