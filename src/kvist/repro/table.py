"""A reproduction as text for a terminal and as Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from kvist.repro.result import ReproResult
from kvist.repro.row import ReproRow

HEADINGS = ("", "published", "the brief", "measured here")
WIDTHS = (30, 26, 18, 44)
NOTHING = "-"


def text_lines(result: ReproResult) -> Iterator[str]:
    """For a terminal of 124 columns."""
    yield f"{result.title} ({result.size}, {_repeats(result)}; {result.executor})"
    yield from wrap(result.setup, sum(WIDTHS) + 6)
    yield ""
    yield from _text_row(HEADINGS)
    yield "  ".join("-" * width for width in WIDTHS)
    for row in result.rows:
        yield from _text_row(cells(row))
        yield from wrap(row.explanation, sum(WIDTHS), initial_indent="    ", subsequent_indent="    ")
    for note in result.notes:
        yield ""
        yield from wrap(note, sum(WIDTHS) + 6)


def markdown_lines(result: ReproResult) -> Iterator[str]:
    """A section of docs/results.md, without its heading."""
    yield f"{result.setup} Size: {result.size}; {_repeats(result)}."
    yield ""
    yield "| | published | the brief | measured here | set-up |"
    yield "| --- | --- | --- | --- | --- |"
    for row in result.rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells(row), row.explanation)) + " |"
    for note in result.notes:
        yield ""
        yield note


def cells(row: ReproRow) -> tuple[str, str, str, str]:
    """Under HEADINGS."""
    equal = {None: "", True: "; equal outputs", False: "; OUTPUTS DIFFER"}[row.equal_output]
    return row.name, row.published or NOTHING, row.brief or NOTHING, row.effect + equal


def _text_row(cells: Sequence[str]) -> Iterator[str]:
    columns = [wrap(cell, width) or [""] for cell, width in zip(cells, WIDTHS, strict=True)]
    for line in range(max(map(len, columns))):
        parts = [column[line] if line < len(column) else "" for column in columns]
        yield "  ".join(f"{part:<{width}}" for part, width in zip(parts, WIDTHS, strict=True)).rstrip()


def _repeats(result: ReproResult) -> str:
    return "1 run" if result.repeats == 1 else f"{result.repeats} repeats, their medians"
