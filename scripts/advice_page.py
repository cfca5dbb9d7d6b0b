"""Write docs/planning.md's table of advice from benchmarks/results/advice_cells.json. With --check: only say whether it
is fresh."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from generated_region import write_or_check

ROOT = Path(__file__).parent.parent
PAGE, RESULT = ROOT / "docs" / "planning.md", ROOT / "benchmarks" / "results" / "advice_cells.json"
BEGIN, END = "<!-- advice: made by scripts/advice_page.py -->\n", "<!-- /advice -->\n"
DISAGREES = "disagrees with the guide on "


def table() -> str:
    document = json.loads(RESULT.read_text(encoding="utf-8"))
    lines = [
        "",
        "| cell | served on | beyond the must-haves, in order | requests/s that keep the targets | the guide, denied |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [_row(name, cell) for name, cell in document["results"].items()]
    commits = ", ".join(dict.fromkeys(cell["commit"][:12] for cell in document["results"].values()))
    origin = f"`python -m benchmarks.advice_cells`, seed {document['seed']}, commit {commits}."
    lines += ["", origin, ""]
    return "\n".join(lines)


def _row(name: str, cell: dict[str, Any]) -> str:  # Any: as JSON gives it
    taken = [f"{each['technique']}{_gain(each)}" for each in cell["taken"] if each["stage"] != "must-have"]
    must_haves = [each for each in cell["taken"] if each["stage"] == "must-have"]
    before = must_haves[-1]["goodput"] if must_haves else cell["baseline"]["goodput"]
    denied = [line.removeprefix(DISAGREES) for line in cell["compared_with_guide"] if line.startswith(DISAGREES)]
    cells = [
        name,
        f"{cell['model']} on {cell['num_devices']} x {cell['device']}",
        ", ".join(taken) or "nothing",
        f"{before:.3g} with the must-haves, {cell['final']['goodput']:.3g} in the end",
        "; ".join(denied) or "-",
    ]
    return f"| {' | '.join(cells)} |"


def _gain(row: dict[str, Any]) -> str:  # Any: as JSON gives it
    """Latencies get smaller by a gain, goodput gets larger."""
    gain = row["gain"]
    if gain is None:
        return ""
    return f" ({row['stage']} {gain if row['stage'] == 'goodput' else -gain:+.0%})"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, (BEGIN, END), table(), script="advice_page.py", words=sys.argv[1:]))
