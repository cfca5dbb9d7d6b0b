"""A page's part that a script writes: what stands between two marks."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(page: Path, marks: tuple[str, str], content: str, *, script: str, words: list[str]) -> int:
    """Put `content` between the marks of `page`; with --check among `words` only say whether it stands there.

    Returns the exit code: 1 for a page that is stale.
    """
    begin, end = marks
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    fresh = before + begin + content + end + after
    if "--check" not in words:
        page.write_text(fresh, encoding="utf-8")
        return 0
    if text == fresh:
        return 0
    print(f"{page} is stale: run .venv/bin/python scripts/{script}", file=sys.stderr)
    return 1
