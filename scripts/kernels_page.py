"""Write what the kernels of the default model take into docs/native.md. With --check: only check it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from generated_region import write_or_check

ROOT = Path(__file__).parent.parent
PAGE, RESULT = ROOT / "docs" / "native.md", ROOT / "benchmarks" / "results" / "kernels.json"
BEGIN, END = "<!-- kernels: made by scripts/kernels_page.py -->\n", "<!-- /kernels -->\n"
ISA = "amx"
CASES = (
    "1 rows", "8 rows", "32 rows", "128 rows", "1 x a decode after 127 tokens", "32 x a decode after 127 tokens",
    "1 x a chunk of 128 after 0 tokens",
)  # fmt: skip
LEAST_SHARE = 0.02  # of a step, to be named


def content() -> str:
    document: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))  # Any: what JSON holds
    ceilings = document["setup"][ISA]["ceilings"]
    lines = [
        "",
        f"Ceilings in the same run: {ceilings['memory_gb_per_s']:.0f} GB/s read from memory, "
        f"{ceilings['resident_gb_per_s']:.0f} GB/s over as many bytes as the weights have, "
        f"{ceilings['bf16_gop_per_s']:,.0f} GFLOP/s of bfloat16 products.",
        "",
        "| step | kernel | times | us each | of the step | bound by | share of that ceiling |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    named = [
        (*row["name"].removeprefix(f"{ISA}, ").removesuffix(", time_s").split(": ", 1), row) for row in document["rows"]
    ]
    for case in CASES:
        kernels = [(name, row) for title, name, row in named if title == case and row["step_share"] >= LEAST_SHARE]
        for number, (name, row) in enumerate(sorted(kernels, key=lambda kernel: -kernel[1]["step_share"])):
            bound = (row["limit"], f"{row['share']:.0%}") if row["limit"] else ("", "")
            lines.append(
                f"| {case if number == 0 else ''} | {name} | {row['count']} | {row['time_s'] * 1e6:,.1f} "
                f"| {row['step_share']:.0%} | {bound[0]} | {bound[1]} |"
            )
    return "\n".join(
        [*lines, "", f"`{document['command']}`, {document['machine']['cpu']}, commit {document['commit'][:12]}.", ""]
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, (BEGIN, END), content(), script="kernels_page.py", words=sys.argv[1:]))
