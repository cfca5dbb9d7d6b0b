"""Print the version of kvist."""

from __future__ import annotations

import argparse

from kvist.core.version import __version__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command takes no options."""


def run(arguments: argparse.Namespace) -> int:
    print(f"kvist {__version__}")
    return 0
