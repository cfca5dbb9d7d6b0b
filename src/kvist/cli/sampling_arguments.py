"""Sampling flags that `complete` and `chat` share, under the names of the request fields."""

from __future__ import annotations

import argparse
from typing import Any

from kvist.config.arguments import number, whole_number


def add_sampling_arguments(parser: argparse.ArgumentParser, *, max_tokens: int | None) -> None:
    """Add them to a group of their own; those not given follow the model file, then the built-in defaults.

    max_tokens: the longest answer by default; None: up to the end of the context.
    """
    group = parser.add_argument_group("sampling options")
    group.add_argument(
        "--max-tokens",
        type=whole_number("--max-tokens", low=1),
        default=max_tokens,
        metavar="TOKENS",
        help=f"longest answer (default: {max_tokens or 'up to the end of the context'})",
    )
    group.add_argument(
        "--temperature", type=number("--temperature", low=0), metavar="FLOAT", help="0 takes the likeliest token"
    )
    group.add_argument("--top-p", type=number("--top-p", low=0), metavar="FLOAT", help="share of probability to keep")
    group.add_argument("--top-k", type=whole_number("--top-k", low=0), metavar="INT", help="tokens to keep; 0: all")
    group.add_argument("--min-p", type=number("--min-p", low=0), metavar="FLOAT", help="least share of the likeliest")
    group.add_argument(
        "--repetition-penalty", type=number("--repetition-penalty", low=0), metavar="FLOAT", help="1: none"
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")


def given_sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Field -> value of the flags that were given, and of --seed. Any: each has its field's own type."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop")
    fields = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    seed = getattr(arguments, "model.seed", None)
    return fields if seed is None else fields | {"seed": seed}
