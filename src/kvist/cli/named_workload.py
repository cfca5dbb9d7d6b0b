"""What `--workload` names: a load that ships with kvist, a trace that does, or a trace file."""

from __future__ import annotations

from pathlib import Path

from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.workload.load_file import Load, shipped_loads
from kvist.workload.recorded_load import SHIPPED_TRACES, read_recorded_load, read_shipped_trace
from kvist.workload.trace_record import TraceRecord


def workload_names() -> list[str]:
    """Of all that ships."""
    return [*shipped_loads().loads, *SHIPPED_TRACES]


def find_workload(name: str, *, block_tokens: int | None = None) -> Load | list[TraceRecord]:
    """A load to draw from, or what was recorded. block_tokens: of a block id of a trace file; None: by its lengths.

    Raises ConfigError, with the nearest name, if there is no such load.
    """
    loads = shipped_loads()
    if name in loads.loads:
        return loads.load(name)
    if name in SHIPPED_TRACES:
        return read_shipped_trace(name)
    if name and Path(name).is_file():
        return read_recorded_load(Path(name), block_tokens=block_tokens)
    known = workload_names()
    raise ConfigError(
        f"--workload {name!r}: there is no such trace file and no such load.{did_you_mean(name, known)} "
        f"Loads are {', '.join(known)}"
    )
