"""Write docs/results.md from benchmarks/results/repro/*.json. With --check: only say whether it is fresh."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvist.repro.page import results_page
from kvist.repro.registry import REPROS

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "results.md", ROOT / "benchmarks" / "results" / "repro"


def page() -> str:
    """In the order of `kvist repro --help`; files that do not exist are left out."""
    paths = [RESULTS / f"{name}.json" for name in REPROS]
    return results_page([json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()])


def main() -> int:
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE} is not what the results say: run scripts/results_page.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
