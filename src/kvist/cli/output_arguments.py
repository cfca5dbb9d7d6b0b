"""The flags that every measuring command shares, and the file it writes: --json, --report, --quick, --model."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvist.bench.machine import date_now, machine_facts, source_version
from kvist.config.model_config import DEFAULT_MODEL
from kvist.core.errors import ConfigError
from kvist.report.svg_figure import require_plots
from kvist.report.written_file import write_whole


def add_output_arguments(parser: argparse.ArgumentParser, *, model: bool = True, quick: bool = True) -> None:
    """Add the flags. model: False where the command has a --model of its own, as those with the engine's options.

    quick: False where nothing is run that could be smaller.
    """
    group = parser.add_argument_group("output options")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    group.add_argument("--report", type=Path, metavar="FILE.html", help="write a page with tables and plots here")
    if quick:
        group.add_argument("--quick", action="store_true", help="a smaller run of the same kind, a minute at most")
    if model:
        group.add_argument(
            "--model",
            default=DEFAULT_MODEL,
            metavar="MODEL",
            help=f"catalogue name, .gguf file, checkpoint folder or Hugging Face id (default: {DEFAULT_MODEL})",
        )


def check_output_files(arguments: argparse.Namespace, *others: str) -> None:
    """Raise ConfigError before the work begins if a file could not be written, or a report not be drawn, at its end.

    others: further arguments that name a file to write.
    """
    if arguments.report is not None:
        require_plots()
    for name in ("json", "report", *others):
        flag, path = f"--{name.replace('_', '-')}", getattr(arguments, name)
        if path is None:
            continue
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ConfigError(f"{flag} {path}: it must name a file in a folder that exists")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise ConfigError(f"{flag} {path}: it cannot be written")


def result_document(name: str, result: Mapping[str, Any], *, repeats: int = 1) -> dict[str, Any]:
    """`result` after what one needs to judge and repeat it: name, command, commit, machine, date, repeats.

    Any: what JSON holds. A field of `result` with one of these names wins.
    """
    return {
        "name": name,
        "command": shlex.join(["kvist", *sys.argv[1:]]),
        "commit": source_version(),
        "machine": machine_facts(),
        "date": date_now(),
        "repeats": repeats,
        **result,
    }


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Raises KvistError if the file cannot be written; what was there before stays then."""
    write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")
