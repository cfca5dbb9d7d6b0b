"""The configuration file that says the same as a `kvist serve` line."""

from __future__ import annotations

import shlex

from kvist.cli import serve
from kvist.config.arguments import ArgumentParser
from kvist.config.load import SERVE_SECTIONS, load_configs
from kvist.config.toml_text import to_toml


def serve_toml(line: str) -> str:
    """For `kvist serve --config`. Raises ConfigError if `kvist serve` does not take the line."""
    parser = ArgumentParser(prog="kvist serve")
    serve.add_arguments(parser)
    arguments = parser.parse_known(shlex.split(line)[2:])
    return f"# {line}\n{to_toml(load_configs(arguments, SERVE_SECTIONS))}"
