"""Time each kernel of a model's native plan: GOP/s, GB/s, and the share of what this machine can do at most.

Ceilings are measured in the same run: reading memory on all threads, and each instruction set's own products on
registers. A kernel's ceiling is the slower of reading its bytes and doing its products; the rest is the gap.
--isa takes several names, separated by commas, or "all".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvist.cli.kernel_table import timed_json, timed_lines
from kvist.cli.model_source import add_model_arguments, find_model
from kvist.config.arguments import add_config_arguments, whole_number
from kvist.config.engine_config import EngineConfig
from kvist.config.load import ENGINE_SECTIONS, engine_config, load_configs
from kvist.core.errors import ConfigError
from kvist.execution.choice import choose_executor
from kvist.models.registry import read_model
from kvist.weights.checkpoint import Checkpoint, open_checkpoint
from kvist.weights.model_shapes import SHAPES
from kvist.weights.random_model import GGUF_FORMATS

if TYPE_CHECKING:
    from kvist.bench.kernel_run import TimedKernels

ROWS = (1, 4, 16, 32, 128, 512)
CONTEXTS = (128, 1024, 4096)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model or its shape, what to time, the form of the answer and all options of the engine."""
    add_model_arguments(parser)
    parser.add_argument("--like", metavar="NAME", help=f"random weights in this shape instead: {', '.join(SHAPES)}")
    parser.add_argument("--format", default="q4_k_m", metavar="FORMAT", help=f"of --like: {', '.join(GGUF_FORMATS)}")
    parser.add_argument("--layers", type=whole_number("--layers", low=1), metavar="N", help="of --like")
    parser.add_argument(
        "--rows",
        default=ROWS,
        type=_numbers("--rows"),
        metavar="N,...",
        help=f"rows of a step (default: {_list(ROWS)})",
    )
    parser.add_argument(
        "--contexts",
        default=CONTEXTS,
        type=_numbers("--contexts"),
        metavar="N,...",
        help=f"tokens that attention looks back on (default: {_list(CONTEXTS)})",
    )
    parser.add_argument("--json", action="store_true", help="a list of one JSON object for each instruction set")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the same list to a file besides")
    add_config_arguments(parser, ENGINE_SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    config = engine_config(load_configs(arguments, ENGINE_SECTIONS))
    checkpoint = _open(arguments, config)
    choose_executor("native", read_model(checkpoint).spec)
    # Here, because `--help` must not need the compiled kernels.
    from kvist.bench.kernel_run import choose_isas, time_kernels

    answers: list[TimedKernels] = []
    for timed in time_kernels(
        checkpoint, config, isas=choose_isas(config.executor.isa), rows=arguments.rows, contexts=arguments.contexts
    ):
        answers.append(timed)
        if not arguments.json:
            print("\n".join(timed_lines(timed)), flush=True)
    document = json.dumps([{"model": str(checkpoint.path)} | timed_json(timed) for timed in answers], indent=2)
    if arguments.json:
        print(document)
    if arguments.output is not None:
        arguments.output.write_text(document + "\n", encoding="utf-8")
    return 0


def _open(arguments: argparse.Namespace, config: EngineConfig) -> Checkpoint:
    if arguments.like is None:
        return open_checkpoint(find_model(config.model))
    if arguments.model_argument is not None:
        raise ConfigError(f"both a model, {arguments.model_argument}, and --like {arguments.like} are given")
    from kvist.bench.random_checkpoint import random_checkpoint

    return random_checkpoint(arguments.like, arguments.format, arguments.layers)


def _numbers(label: str) -> Callable[[str], tuple[int, ...]]:
    number = whole_number(label, low=1)
    return lambda text: tuple(number(part) for part in text.split(","))


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
