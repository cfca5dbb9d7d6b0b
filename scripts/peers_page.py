"""Write docs/peers.md's tables from benchmarks/results/peers*.json. With --check: only say whether they are fresh."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from generated_region import write_or_check

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "peers.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: made by scripts/peers_page.py -->\n", "<!-- /results -->\n"
FILES = ("peers", "peers_server", "peers_avx2", "peers_1b", "peers_7b", "peers_gemma")


def tables() -> str:
    """All tables, one a result file; files that do not exist are left out."""
    paths = [RESULTS / f"{name}.json" for name in FILES]
    return "".join(f"\n{table(json.loads(path.read_text(encoding='utf-8')))}\n" for path in paths if path.exists())


def table(document: dict[str, Any]) -> str:
    """Measures down, engines across; the last column is the best of kvist's settings beside the best of the peers."""
    results, machine = document["results"], document["machine"]
    rows: dict[str, dict[str, Any]] = results["rows"]
    measures = list(dict.fromkeys(measure for row in rows.values() for measure in row))
    lines = [
        f"`{document['command']}`: {results['model']}, {results['num_threads']} threads, instruction set "
        f"{results['isa']}, on {machine['num_cores']} x {machine['cpu'].replace('(R)', '')}, commit "
        f"{document['commit'][:12]}.",
        "",
        "| Measure | " + " | ".join(rows) + " | best against best |",
        "| --- |" + " --- |" * (len(rows) + 1),
    ]
    for measure in measures:
        unit = next(row[measure]["unit"] for row in rows.values() if measure in row)
        cells = [_cell(row.get(measure)) for row in rows.values()]
        best = results["fastest_peers"].get(measure)
        cells.append(f"{best['kvist']}: {best['kvist_times_better']:.2f}x {best['peer']}" if best else "")
        lines.append(f"| `{measure}`, {unit} | " + " | ".join(cells) + " |")
    failures = [f"{name} failed: {why}." for name, why in results["failures"].items()]
    return "\n".join([*lines, *(["", *failures] if failures else [])])


def _cell(value: dict[str, Any] | None) -> str:
    if value is None:
        return ""
    median = value["median"]
    shown = f"{median:,.0f}" if median >= 100 else f"{median:.3g}"
    return f"{shown} ({value['kvist_times_better']:.2f}x)" if "kvist_times_better" in value else shown


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, (BEGIN, END), tables(), script="peers_page.py", words=sys.argv[1:]))
