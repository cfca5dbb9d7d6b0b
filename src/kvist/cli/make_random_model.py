"""Write a model with random weights in the shape of a well-known one: for tests and for measuring, not for talking."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvist.cli.progress import progress_display
from kvist.config.arguments import whole_number
from kvist.core.errors import ConfigError
from kvist.weights.model_shapes import SHAPES
from kvist.weights.random_model import HF_FORMATS, RANDOM_FORMATS, make_random_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to imitate, how to store it and where."""
    parser.add_argument(
        "output",
        nargs="?",
        help="file to write, or folder for the hf formats (default: NAME-FORMAT.gguf, or NAME-FORMAT, in this folder)",
    )
    parser.add_argument("--like", required=True, metavar="NAME", help=f"one of {', '.join(SHAPES)}")
    parser.add_argument("--format", default="q8_0", metavar="FORMAT", help=f"one of {', '.join(RANDOM_FORMATS)}")
    parser.add_argument(
        "--layers", type=whole_number("--layers", low=1), metavar="N", help="instead of the real number"
    )
    parser.add_argument(
        "--seed", type=whole_number("--seed", low=0), default=0, metavar="S", help="same seed, same file"
    )
    parser.add_argument("--force", action="store_true", help="overwrite what is there")


def run(arguments: argparse.Namespace) -> int:
    suffix = "" if arguments.format in HF_FORMATS else ".gguf"
    output = Path(arguments.output or f"{arguments.like}-{arguments.format}{suffix}")
    if output.exists() and not arguments.force:
        raise ConfigError(f"{output} exists; --force overwrites it")
    if arguments.format in HF_FORMATS and output.suffix == ".gguf":
        raise ConfigError(f"the format {arguments.format} is a folder; {output} is the name of a GGUF file")
    with progress_display() as show:
        make_random_model(
            arguments.like,
            arguments.format,
            output,
            layers=arguments.layers,
            seed=arguments.seed,
            progress=lambda done, total: show(f"writing {output}", done, total),
        )
    print(output)
    return 0
