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

Document = Mapping[str, Any]  # Any: what JSON holds


@dataclass(slots=True)
class _Stored:
    """The files by what they hold; names are those of the files, without .json."""

    runs: dict[str, Document] = field(default_factory=dict)
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
    documents = [*stored.runs.values(), *stored.papers, *stored.policies.values()]
    report = Report(arguments.title or names, facts=_facts(documents))
    if stored.runs:
        add_runs(report, stored.runs)
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
    from kvist.bench.run_report import is_run

    stored = _Stored()
    for path in files:
        name = path.stem
        while name in stored.runs or name in stored.policies or name in stored.traces:
            name += "'"  # files of one name from two folders
        with path.open(encoding="utf-8", errors="replace") as text:
            if text.read(2) == "[\n":
                stored.traces[name] = path
                continue
        for document in _read(path):
            if is_run(document):
                stored.runs[name] = document
            elif "capacity_per_s" in document and "rows" in document:
                stored.policies[name] = document
            elif {"title", "setup", "rows"} <= document.keys():
                stored.papers.append(document)
            else:
                raise ConfigError(f"{path} is no result that a page can be made of: {sorted(document)[:8]}")
    return stored


def _read(path: Path) -> list[Document]:
    """The documents of a file: one, or several in a list."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    documents = found if isinstance(found, list) else [found]
    if not all(isinstance(document, dict) for document in documents):
        raise ConfigError(f"{path} is no result that a page can be made of: it holds no objects")
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
