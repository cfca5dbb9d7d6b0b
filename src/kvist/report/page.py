"""Puts a report together: one HTML file that needs nothing else. Draws nothing itself."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kvist.core.version import __version__
from kvist.report.plot import Cell, Plot, format_cell
from kvist.report.written_file import write_whole

MAX_TABLE_ROWS = 400  # beside a plot: a page should open from a mail


def page_facts(document: Mapping[str, Any], *others: str) -> dict[str, str]:
    """What stands below the title of a page about a result: what it says of its command, commit, date and `others`.

    Any: what JSON holds.
    """
    return {name: str(document[name]) for name in ("command", "commit", "date", *others) if name in document}


class Report:
    """A page that grows from top to bottom. facts: what stands below the title (command, machine, commit, date)."""

    def __init__(self, title: str, *, facts: Mapping[str, str] | None = None) -> None:
        self._title = title
        self._facts = dict(facts or {})
        self._parts: list[str] = []

    def add_heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def add_text(self, text: str) -> None:
        """Plain text; an empty line begins a new paragraph."""
        self._parts += (f"<p>{html.escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())

    def add_table(self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, caption: str | None = None) -> None:
        """Numbers stand right, text left; None shows as a dash."""
        self._parts.append(f'<div class="wide">{_table(headers, rows, caption)}</div>')

    def add_plot(self, plot: Plot, *, caption: str | None = None) -> None:
        """The drawing, and its numbers as a table that opens below it."""
        rows = plot.rows[:MAX_TABLE_ROWS]
        more = f" First {MAX_TABLE_ROWS} of {len(plot.rows):,} rows." if len(rows) < len(plot.rows) else ""
        caption_html = f"<p>{html.escape(caption)}</p>" if caption else ""
        self._parts.append(
            f"<figure><h3>{html.escape(plot.title)}</h3>{plot.svg}"
            f"<figcaption>{caption_html}<details><summary>Numbers</summary>"
            f'<p>{html.escape(plot.description + more)}</p><div class="wide">{_table(plot.headers, rows, None)}</div>'
            "</details></figcaption></figure>"
        )

    def to_html(self) -> str:
        style = resources.files("kvist.report").joinpath("style.css").read_text(encoding="utf-8")
        title = html.escape(self._title)
        facts = "".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
            for name, value in self._facts.items()
        )
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>\n{style}</style></head>\n<body><main><header><h1>{title}</h1>"
            + (f"<dl>{facts}</dl>" if facts else "")
            + "</header>\n"
            + "\n".join(self._parts)
            + f"\n<footer>kvist {__version__}</footer></main></body></html>\n"
        )

    def write(self, path: Path) -> None:
        """Raises KvistError if the page cannot be written; what was there before stays then."""
        write_whole(path, self.to_html())


def _table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str | None) -> str:
    top = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    head = "".join(f'<th scope="col">{html.escape(header)}</th>' for header in headers)
    cells = ("".join(_cell(value, is_first=i == 0) for i, value in enumerate(row)) for row in rows)
    body = "".join(f"<tr>{row}</tr>\n" for row in cells)
    return f"<table>{top}<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _cell(value: Cell, *, is_first: bool) -> str:
    text = html.escape(format_cell(value))
    if is_first and isinstance(value, str):
        return f'<th scope="row">{text}</th>'
    return f"<td>{text}</td>" if isinstance(value, str) else f'<td class="number">{text}</td>'
