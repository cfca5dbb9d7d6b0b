"""Time each kernel of a model's native plan: GOP/s, GB/s, and the share of what this machine can do at most.

Ceilings are measured in the same run: reading memory on all threads, and each instruction set's own products on
registers. A kernel's ceiling is the slower of reading its bytes and doing its products; the rest is the gap.
--isa takes several names, separated by commas, or "all".
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvist.cli.kernel_table import add_timed, kernels_result, timed_lines
from kvist.cli.model_source import add_model_arguments, find_model
from kvist.cli.output_arguments import (
    add_output_arguments,
    check_output_files,
    result_document,
    write_json,
)
from kvist.config.arguments import add_config_arguments, whole_number
from kvist.config.engine_config import EngineConfig
from kvist.config.load import ENGINE_SECTIONS, engine_config, load_configs
from kvist.core.errors import ConfigError
from kvist.execution.choice import choose_executor
from kvist.models.registry import read_model
from kvist.report import Report, page_facts
from kvist.weights.checkpoint import Checkpoint, open_checkpoint
from kvist.weights.model_shapes import SHAPES
from kvist.weights.random_model import GGUF_FORMATS

if TYPE_CHECKING:
    from kvist.bench.kernel_run import TimedKernels

ROWS = (1, 4, 16, 32, 128, 512)
CONTEXTS = (128, 1024, 4096)
QUICK_ROWS, QUICK_CONTEXTS = (1, 16, 128), (128,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model or its shape, what to time, where the result goes and all options of the engine."""
    add_model_arguments(parser)
    parser.add_argument("--like", metavar="NAME", help=f"random weights in this shape instead: {', '.join(SHAPES)}")
    parser.add_argument("--format", default="q4_k_m", metavar="FORMAT", help=f"of --like: {', '.join(GGUF_FORMATS)}")
    parser.add_argument("--layers", type=whole_number("--layers", low=1), metavar="N", help="of --like")
    parser.add_argument(
        "--rows",
        type=_numbers("--rows"),
        metavar="N,...",
        help=f"rows of a step (default: {_list(ROWS)}; quick: {_list(QUICK_ROWS)})",
    )
    parser.add_argument(
        "--contexts",
        type=_numbers("--contexts"),
        metavar="N,...",
        help=f"tokens that attention looks back on (default: {_list(CONTEXTS)}; quick: {_list(QUICK_CONTEXTS)})",
    )
    add_output_arguments(parser, model=False)
    add_config_arguments(parser, ENGINE_SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments)
    config = engine_config(load_configs(arguments, ENGINE_SECTIONS))
    checkpoint = _open(arguments, config)
    choose_executor("native", read_model(checkpoint).spec)
    # Here, because `--help` must not need the compiled kernels.
    from kvist.bench.kernel_run import choose_isas, time_kernels

    rows = arguments.rows or (QUICK_ROWS if arguments.quick else ROWS)
    contexts = arguments.contexts or (QUICK_CONTEXTS if arguments.quick else CONTEXTS)
    answers: list[TimedKernels] = []
    for timed in time_kernels(checkpoint, config, isas=choose_isas(config.executor.isa), rows=rows, contexts=contexts):
        answers.append(timed)
        print("\n".join(timed_lines(timed)), flush=True)
    document = result_document("bench kernels", kernels_result(arguments.like or config.model.model, answers))
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        report = Report(f"{document['model_id']}: kernels", facts=page_facts(document))
        for timed in answers:
            add_timed(report, timed)
        report.write(arguments.report)
    return 0


def _open(arguments: argparse.Namespace, config: EngineConfig) -> Checkpoint:
    if arguments.like is None:
        return open_checkpoint(find_model(config.model))
    if arguments.model_argument is not None or hasattr(arguments, "model.model"):
        raise ConfigError(f"both a model, {config.model.model}, and --like {arguments.like} are given")
    from kvist.bench.random_checkpoint import random_checkpoint

    return random_checkpoint(arguments.like, arguments.format, arguments.layers)


def _numbers(label: str) -> Callable[[str], tuple[int, ...]]:
    number = whole_number(label, low=1)
    return lambda text: tuple(number(part) for part in text.split(","))


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
