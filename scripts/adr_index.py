"""Write the table in docs/adr/README.md from the records' titles. With --check: only say whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "adr"
TABLE_HEAD = "| Record | Decision |\n| --- | --- |\n"


def index() -> str:
    """The page with its table made anew."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        number, _, title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").partition(". ")
        rows.append(f"| [{number}]({path.name}) | {title} |\n")
    return text.split(TABLE_HEAD)[0] + TABLE_HEAD + "".join(rows)


def main(words: list[str]) -> int:
    page = FOLDER / "README.md"
    if "--check" in words:
        if page.read_text(encoding="utf-8") == index():
            return 0
        print(f"{page} is stale: run .venv/bin/python scripts/adr_index.py", file=sys.stderr)
        return 1
    page.write_text(index(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
