"""The MODEL argument that several commands share, and finding what it names."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvist.cli.progress import progress_display
from kvist.config.model_config import DEFAULT_MODEL, ModelConfig


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the positional MODEL and --config."""
    parser.add_argument(
        "model_argument",
        nargs="?",
        metavar="MODEL",
        help=f"catalogue name, .gguf file, checkpoint folder or Hugging Face id (default: {DEFAULT_MODEL})",
    )
    add_config_file_argument(parser)


def add_config_file_argument(parser: argparse.ArgumentParser) -> None:
    """Add --config, for commands whose positional argument is not the model."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with options; flags override it")


def find_model(config: ModelConfig) -> Path:
    """Where the model lies on disk; fetched first, with progress, if it is not there."""
    # Here, because the arguments alone need no code that reads models.
    from kvist.weights.fetch import resolve_model

    with progress_display() as show:
        return resolve_model(config.model, revision=config.revision, progress=show)
