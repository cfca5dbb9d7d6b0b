"""--scale and --repeats, the same wherever a measurement can be made shorter or repeated."""

from __future__ import annotations

import argparse

from kvist.config.arguments import number, whole_number

REPEATS = 3


def add_size_arguments(parser: argparse.ArgumentParser, *, once_with: str, usual: str = "1") -> None:
    """once_with: the flags with which everything runs once. usual: the share without --scale, in words."""
    parser.add_argument(
        "--scale",
        type=number("--scale", low=0.001),
        metavar="SHARE",
        help=f"share of a load's requests, or of its seconds where its rate changes (default: {usual})",
    )
    parser.add_argument(
        "--repeats",
        type=whole_number("--repeats", low=1),
        metavar="N",
        help=f"runs of each configuration, in turns (default: {REPEATS}; 1 with {once_with})",
    )


def num_repeats(arguments: argparse.Namespace, *, is_once: bool) -> int:
    """What was asked for, else once or REPEATS times."""
    repeats: int = arguments.repeats or (1 if is_once else REPEATS)
    return repeats
