"""The documents of reproductions as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvist.report import Report, bar_plot, page_facts, require_plots
from kvist.repro.page import origin
from kvist.repro.result import from_document
from kvist.repro.table import HEADINGS, cells

Document = Mapping[str, Any]  # Any: JSON


def check_report() -> None:
    """Raise ConfigError if no plots can be drawn here, before anything is measured."""
    require_plots()


def write_report(path: Path, documents: Sequence[Document]) -> None:
    """Tables as on the terminal, plots, notes."""
    report = Report("Published results, measured here", facts=page_facts(documents[0]))
    for document in documents:
        add_result(report, document)
    report.write(path)


def add_result(report: Report, document: Document) -> None:
    """One reproduction's section."""
    result = from_document(document)
    report.add_heading(result.title)
    report.add_text(f"{result.setup} Size: {result.size}; repeats: {result.repeats}.\n\n{origin(document)}")
    headers = [*HEADINGS[:4], "set-up"]
    report.add_table(headers, [[*cells(row), row.explanation] for row in result.rows])
    for plot in result.plots:
        report.add_plot(bar_plot(plot.title, plot.groups, plot.values, y_label=plot.unit))
    for note in result.notes:
        report.add_text(note)
