"""Run the measurement behind a paper's claim on this engine and print it beside the published figure.

NAME is one of the reproductions below, or "all", which also writes docs/results.md and the results that it is made of.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvist.cli.model_source import add_config_file_argument, find_model
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.cli.size_arguments import add_size_arguments, num_repeats
from kvist.config.arguments import add_config_arguments
from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import ExecutorConfig
from kvist.config.load import load_configs
from kvist.config.model_config import ModelConfig
from kvist.core.errors import ConfigError
from kvist.report.written_file import write_whole
from kvist.repro.registry import REPROS, find
from kvist.repro.result import ReproResult, to_document
from kvist.repro.setting import ReproSetting
from kvist.repro.table import text_lines

SECTIONS = {"model": ModelConfig, "cache": CacheConfig, "executor": ExecutorConfig}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, REPROS))
    parser.epilog = "\n".join(f"  {name:<{width}}  {repro.paper}" for name, repro in REPROS.items())
    parser.add_argument("name", metavar="NAME", help="which reproduction, or all")
    add_size_arguments(parser, once_with="--quick", usual="what each takes a few minutes for")
    parser.add_argument(
        "--results", type=Path, default=Path("docs/results.md"), metavar="FILE.md", help="where `all` writes its page"
    )
    parser.add_argument(
        "--documents",
        type=Path,
        default=Path("benchmarks/results/repro"),
        metavar="FOLDER",
        help="where `all` writes each result as JSON",
    )
    add_output_arguments(parser, model=False)
    add_config_file_argument(parser)
    add_config_arguments(parser, SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    is_all = arguments.name == "all"
    names = list(REPROS) if is_all else [arguments.name]
    _check(arguments, names)
    setting = _setting(arguments, needs_model=not all(find(name).is_simulated for name in names))
    # Here, because --help must not wait for the engine's imports.
    from kvist.repro import registry
    from kvist.repro.page import results_page
    from kvist.repro.report import check_report, write_report

    if arguments.report is not None:
        check_report()
    documents: list[dict[str, Any]] = []
    for name in names:
        result = registry.run(name, setting)
        sys.stdout.write("\n".join([*text_lines(result), "", ""]))
        sys.stdout.flush()
        documents.append(_document(result))
        if is_all:
            arguments.documents.mkdir(exist_ok=True)
            write_json(arguments.documents / f"{name}.json", documents[-1])
    if arguments.json is not None:
        write_json(arguments.json, {"repros": documents} if is_all else documents[0])
    if arguments.report is not None:
        write_report(arguments.report, documents)
    if is_all:
        write_whole(arguments.results, results_page(documents))
    return 0


def _check(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise ConfigError before the work begins for what could not end well."""
    for name in names:
        find(name)
    check_output_files(arguments)
    if arguments.name != "all":
        return
    for flag, path in (("--results", arguments.results), ("--documents", arguments.documents)):
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"{flag} {path}: its folder does not exist")


def _setting(arguments: argparse.Namespace, *, needs_model: bool) -> ReproSetting:
    configs = load_configs(arguments, SECTIONS)
    return ReproSetting(
        model_path=find_model(configs["model"]) if needs_model else Path(),
        model=configs["model"],
        cache=configs["cache"],
        executor=configs["executor"],
        is_quick=arguments.quick,
        scale=arguments.scale,
        repeats=num_repeats(arguments, is_once=arguments.quick),
        say=lambda text: print(f"kvist repro: {text}", file=sys.stderr, flush=True),
    )


def _document(result: ReproResult) -> dict[str, Any]:
    """Any: JSON."""
    return result_document(result.name, to_document(result), repeats=result.repeats)
