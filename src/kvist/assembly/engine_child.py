"""Entry point of engine processes: `python -m kvist.assembly.engine_child DESCRIPTOR`. See runtime/engine_launch."""

from __future__ import annotations

import logging
import sys

from kvist.assembly.build_engine import build_engine
from kvist.runtime.engine_process import run_engine_process
from kvist.runtime.real_clock import RealClock


def main() -> int:
    """Serve the parent whose socket's descriptor is the one argument."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
    return run_engine_process(sys.argv[1], build_engine, RealClock())


if __name__ == "__main__":
    sys.exit(main())
