"""Compare results of benchmarks: figures side by side, ratios, and which differences are larger than the spread.

Give the baseline first. Repeats of one side go into one argument, with commas between: A1.json,A2.json B1.json,B2.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvist.cli.output_arguments import (
    add_output_arguments,
    check_output_files,
    result_document,
    write_json,
)
from kvist.core.errors import ConfigError
from kvist.metrics.comparison import ComparedRow, Figure, compare
from kvist.report import Report, page_facts

# What must be equal for a comparison to mean something.
CONDITIONS = (
    "load",
    "seed",
    "num_prompts",
    "request_rate",
    "max_concurrency",
    "length_factor",
    "ignore_eos",
    "targets",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", metavar="RESULT.json[,RESULT.json...]", help="at least two")
    parser.add_argument("--model", metavar="NAME", help="refuse results of another model")
    add_output_arguments(parser, model=False)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments)
    if len(arguments.results) < 2:
        raise ConfigError("give at least two results to compare")
    sides = [[_read(Path(name)) for name in side.split(",")] for side in arguments.results]
    for result in (result for side in sides for result in side):
        if arguments.model not in (None, result.get("model_id")):
            raise ConfigError(f"--model {arguments.model}: a result is of {result.get('model_id', 'no model')}")
    names = [_label(text, side) for text, side in zip(arguments.results, sides, strict=True)]
    rows = compare(sides)
    if not rows:
        raise ConfigError("these results have no figure in common")
    differing = _differing(sides)
    print("\n".join(table_lines(names, rows, differing)))
    document = result_document("bench compare", {"sides": names, "differing": differing, "rows": _as_json(names, rows)})
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        _write_report(arguments.report, document, names, rows)
    return 0


def table_lines(names: Sequence[str], rows: Sequence[ComparedRow], differing: Sequence[str]) -> list[str]:
    width = max(len(row.name) for row in rows)
    lines = [f"{chr(ord('A') + place)}: {name}" for place, name in enumerate(names)]
    lines += [f"not the same on all sides: {what}" for what in differing]
    heading = "".join(f" {chr(ord('A') + place):>22}" for place in range(len(names)))
    lines.append(f"{'':<{width}}{heading}   against A")
    for row in rows:
        figures = "".join(f" {_figure_text(figure):>22}" for figure in row.figures)
        against = ", ".join(
            f"{'n/a' if ratio is None else f'{ratio:.3f}x'} {verdict}"
            for ratio, verdict in zip(row.ratios[1:], row.verdicts[1:], strict=True)
            if verdict is not None
        )
        lines.append(f"{row.name:<{width}}{figures}   {against}")
    return lines


def _figure_text(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.4g}"
    return f"{figure.value:.4g} [{figure.low:.4g}, {figure.high:.4g}]"


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read the result {path}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is no result of a benchmark: it holds no JSON object")
    return document


def _label(text: str, side: Sequence[dict[str, Any]]) -> str:
    label = side[0].get("label") or side[0].get("model_id")
    return f"{text} ({label})" if label else text


def _differing(sides: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    results = [result for side in sides for result in side]
    found = []
    for name in CONDITIONS:
        values = {json.dumps(result.get(name)) for result in results}
        if len(values) > 1:
            found.append(f"{name} ({', '.join(sorted(values))})")
    return found


def _as_json(names: Sequence[str], rows: Sequence[ComparedRow]) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "higher_is_better": row.higher_is_better,
            "figures": [
                None if figure is None else {"value": figure.value, "low": figure.low, "high": figure.high}
                for figure in row.figures
            ],
            "ratios": list(row.ratios),
            "verdicts": [None if verdict is None else verdict.value for verdict in row.verdicts],
        }
        for row in rows
    ]


def _write_report(path: Path, document: dict[str, Any], names: Sequence[str], rows: Sequence[ComparedRow]) -> None:
    report = Report("Results compared", facts=page_facts(document))
    for what in document["differing"]:
        report.add_text(f"Not the same on all sides: {what}")
    report.add_table(
        ("", *names, *(f"{name} / {names[0]}" for name in names[1:]), *(f"{name}: difference" for name in names[1:])),
        [
            (
                row.name,
                *(_figure_text(figure) for figure in row.figures),
                *row.ratios[1:],
                *(str(verdict or "-") for verdict in row.verdicts[1:]),
            )
            for row in rows
        ],
    )
    report.write(path)
