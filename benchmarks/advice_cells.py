"""Advice for the twelve cells of the survey's selection guide: four scenarios, three sizes of model.

Each cell is one `kvist advise`; its document goes whole into the result, so that every figure names its simulation and
the command that repeats it. Cells that are named are made again, all of them by default.

Run: python -m benchmarks.advice_cells [SCENARIO/SIZE ...]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.result_file import RESULTS, write_result
from kvist.bench.machine import source_version
from kvist.cli.main import main as kvist
from kvist.workload.load_file import scenario_loads

NAME = "advice_cells"
SEEDED = "service_chat"  # all loads of scenarios share its seed; a recorded trace has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size of model as the guide tells them apart, and what it is served on. cluster_devices: of a large cluster."""

    model: str
    device: str
    num_devices: int
    cluster_devices: int


SIZES = {
    "small": Size(model="llama-3.2-3b", device="L40S", num_devices=2, cluster_devices=4),
    "medium": Size(model="qwen2.5-14b", device="A100-80GB-SXM", num_devices=4, cluster_devices=8),
    "large": Size(model="llama-3.1-70b", device="H100-80GB-SXM", num_devices=8, cluster_devices=16),
}
NUM_PROMPTS = {"chat": 200, "long-prompt": 80, "multi-turn": 120, "large-cluster": 40}
CELLS = [f"{scenario}/{size}" for scenario in NUM_PROMPTS for size in SIZES]


def words(cell: str) -> list[str]:
    """The command line of a cell, without the program."""
    scenario, name = cell.split("/")
    size = SIZES[name]
    num_devices = size.cluster_devices if scenario == "large-cluster" else size.num_devices
    return [
        "advise", "--scenario", scenario, "--model", size.model, "--device", size.device, "--gpus", str(num_devices),
        "--num-prompts", str(NUM_PROMPTS[scenario]),
    ]  # fmt: skip


def measure(cell: str) -> dict[str, Any]:
    """Any: what JSON holds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "advice.json"
        if kvist([*words(cell), "--json", str(path)]) != 0:
            raise SystemExit(f"no advice for {cell}")
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    origin = {"command": " ".join(["kvist", *words(cell)]), "commit": source_version()}  # cells are made one by one
    return origin | {key: document[key] for key in KEPT}


KEPT = (
    "scenario", "model", "device", "num_devices", "workload", "num_prompts", "seed", "objective", "reference_rate",
    "load_lifetimes", "baseline", "taken", "refused", "final", "guide", "compared_with_guide",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", choices=[*CELLS, []], metavar="SCENARIO/SIZE", help="default: all")
    chosen = parser.parse_args().cells or CELLS
    path = RESULTS / f"{NAME}.json"
    for cell in chosen:
        document = measure(cell)
        # Read late: others may have been made meanwhile.
        cells: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
        cells[cell] = document
        sys.stderr.write(f"{cell}: {cells[cell]['final']['setup']}\n")
        results: dict[str, object] = {name: cells[name] for name in CELLS if name in cells}
        write_result(
            NAME,
            results,
            seed=scenario_loads().loads[SEEDED].seed,
            num_warm_up=0,
            limits="step times are the cost model's; loads are short beside a request's life at the highest goodputs",
        )


if __name__ == "__main__":
    main()
