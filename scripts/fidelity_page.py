"""Write the tables of docs/fidelity.md from the stored result. With --check: only say whether they are fresh."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from generated_region import write_or_check

from kvist.bench.fidelity.table import markdown_lines

ROOT = Path(__file__).parent.parent
PAGE, RESULT = ROOT / "docs" / "fidelity.md", ROOT / "benchmarks" / "results" / "fidelity.json"
BEGIN, END = "<!-- results: made by scripts/fidelity_page.py -->\n", "<!-- /results -->\n"


def tables() -> str:
    """Of the stored result; nothing where there is none."""
    if not RESULT.exists():
        return ""
    return "\n" + "\n".join(markdown_lines(json.loads(RESULT.read_text(encoding="utf-8")))) + "\n\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, (BEGIN, END), tables(), script="fidelity_page.py", words=sys.argv[1:]))
