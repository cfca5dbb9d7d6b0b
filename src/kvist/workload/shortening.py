"""A load made shorter: fewer requests, or fewer seconds where its rate changes with time. Lengths stay as they are."""

from __future__ import annotations

from dataclasses import replace

from kvist.workload.load_file import Load
from kvist.workload.single_turn import Changing

COUNTS = ("num_requests", "num_sessions", "roots")  # what a load has many of, by its shape


def shortened(load: Load, share: float, *, least: int = 1) -> Load:
    """`load` with a share of its requests (sessions, roots), at least `least` if it has so many, or of its seconds."""
    shape = load.shape
    if isinstance(shape, Changing):
        segments = tuple(replace(segment, seconds=segment.seconds * share) for segment in shape.segments)
        return replace(load, shape=replace(shape, segments=segments))
    whole = {name: getattr(shape, name) for name in COUNTS if hasattr(shape, name)}
    counts = {name: max(min(least, count), round(count * share)) for name, count in whole.items()}
    return replace(load, shape=replace(shape, **counts))
