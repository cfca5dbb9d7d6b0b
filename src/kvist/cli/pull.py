"""Fetch a model into the cache, or say where it lies if it is there already."""

from __future__ import annotations

import argparse

from kvist.cli.progress import progress_display
from kvist.config.model_config import DEFAULT_MODEL
from kvist.weights.fetch import resolve_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to fetch."""
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help=f"catalogue name, or Hugging Face id: org/repo[:Q4_K_M] or org/repo/file.gguf (default: {DEFAULT_MODEL})",
    )
    parser.add_argument("--revision", metavar="NAME", help="Hugging Face branch, tag or commit")
    parser.add_argument("--refresh", action="store_true", help="ask the hub for a newer version")
    parser.add_argument("--accept-license", action="store_true", help="accept the model's own terms, once read")


def run(arguments: argparse.Namespace) -> int:
    with progress_display() as show:
        path = resolve_model(
            arguments.model,
            revision=arguments.revision,
            accept_license=arguments.accept_license,
            refresh=arguments.refresh,
            progress=show,
        )
    print(path)
    return 0
