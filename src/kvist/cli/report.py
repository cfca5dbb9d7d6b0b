"""Make one page of stored results, without running anything again.

Takes what --json and --save-result of the benchmarks wrote (several runs are drawn into the same plots), results of
kvist repro and of kvist bench policies, and step traces.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvist.core.errors import ConfigError
from kvist.metrics.comparison import Figure, figures_of

Document = Mapping[str, Any]  # Any: what JSON holds


@dataclass(slots=True)
class _Stored:
    """The files by what they hold; names are those of the files, without .json."""

    runs: dict[str, Document] = field(default_factory=dict)
    offline: dict[str, Document] = field(default_factory=dict)
    papers: list[Document] = field(default_factory=list)
    policies: dict[str, Document] = field(default_factory=dict)
    traces: dict[str, Path] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files, the page and its title."""
    parser.add_argument("files", type=Path, nargs="+", metavar="RESULT.json", help="what a benchmark or --trace wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PAGE.html", help="the page to write")
    parser.add_argument("--title", help="of the page (default: the names of the files)")


def run(arguments: argparse.Namespace) -> int:
    # Here, because `--help` must not wait for what draws.
    from kvist.bench.run_report import add_runs
    from kvist.bench.trace_report import add_trace
    from kvist.report import Report, require_plots
    from kvist.repro.report import add_result

    require_plots()
    stored = _read_all(arguments.files)
    names = ", ".join(path.stem for path in arguments.files)
    documents = [*stored.runs.values(), *stored.offline.values(), *stored.papers, *stored.policies.values()]
    report = Report(arguments.title or names, facts=_facts(documents))
    if stored.runs:
        add_runs(report, stored.runs)
    if stored.offline:
        _add_offline(report, stored.offline)
    for name, document in stored.policies.items():
        report.add_heading(f"Policies: {name}")
        _add_policies(report, document)
    for document in stored.papers:
        add_result(report, document)
    for name, path in stored.traces.items():
        report.add_heading(f"Trace: {name}")
        add_trace(report, path)
    report.write(arguments.output)
    return 0


def _read_all(files: Sequence[Path]) -> _Stored:
    stored = _Stored()
    for path in files:
        name = path.stem
        while name in {**stored.runs, **stored.offline, **stored.policies, **stored.traces}:
            name += "'"  # files of one name from two folders
        try:
            with path.open(encoding="utf-8", errors="replace") as text:
                is_trace = text.read(2) == "[\n"
            if is_trace:
                stored.traces[name] = path
                continue
            for document in _read(path):
                _store(stored, name, document)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    return stored


def _store(stored: _Stored, name: str, document: Document) -> None:
    """Put a document where what it holds belongs. Raises ConfigError if it holds nothing that is known, or damage."""
    from kvist.bench.run_report import check_run, is_run
    from kvist.cli.policy_table import check_policy_document
    from kvist.repro.result import from_document

    if is_run(document):
        check_run(document)
        stored.runs[name] = document
    elif "capacity_per_s" in document and "rows" in document:
        check_policy_document(document)
        stored.policies[name] = document
    elif {"title", "setup", "rows"} <= document.keys():
        from_document(document)
        stored.papers.append(document)
    elif figures_of(document):
        stored.offline[name] = document
    else:
        raise ConfigError(f"this is no result that a page can be made of: {', '.join(sorted(document)[:8])}")


def _add_offline(report: Any, documents: Mapping[str, Document]) -> None:  # Any: a Report, whose module is loaded late
    """The figures of throughput and latency measured in one process, side by side."""
    figures = {name: figures_of(document) for name, document in documents.items()}
    labels = list(dict.fromkeys(label for known in figures.values() for label in known))
    rows = [[label, *(_figure_text(known.get(label)) for known in figures.values())] for label in labels]
    report.add_heading("Engines in one process")
    report.add_table(("median [least, most]", *figures), rows)


def _figure_text(figure: Figure | None) -> str | None:
    if figure is None or figure.low is None or figure.high is None:
        return None if figure is None else f"{figure.value:.4g}"
    return f"{figure.value:.4g} [{figure.low:.4g}, {figure.high:.4g}]"


def _read(path: Path) -> list[Document]:
    """The documents of a file: one, or several in a list."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is not JSON: {error}") from error
    documents = found if isinstance(found, list) else [found]
    if not all(isinstance(document, dict) for document in documents):
        raise ConfigError("this is no result that a page can be made of: it holds no objects")
    return documents


def _facts(documents: Sequence[Document]) -> dict[str, str]:
    """Where the results come from; what they agree on once."""
    facts = {}
    for name in ("command", "commit", "date"):
        values = dict.fromkeys(str(document[name]) for document in documents if name in document)
        if values:
            facts[name] = " · ".join(values)
    machines = dict.fromkeys(
        f"{document['machine'].get('cpu')}, {document['machine'].get('num_cores_granted')} cores"
        for document in documents
        if isinstance(document.get("machine"), dict)
    )
    if machines:
        facts["machine"] = " · ".join(machines)
    return facts


def _add_policies(report: Any, document: Document) -> None:  # Any: a Report, whose module is loaded late
    from kvist.cli.policy_table import add_policy_table

    add_policy_table(report, document)
