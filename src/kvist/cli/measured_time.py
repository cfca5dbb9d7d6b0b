"""How long a command has taken so far, by the clock and in CPU time, that of its ended processes included."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTime:
    wall_s: float
    cpu_s: float

    def __sub__(self, earlier: MeasuredTime) -> MeasuredTime:
        return MeasuredTime(wall_s=self.wall_s - earlier.wall_s, cpu_s=self.cpu_s - earlier.cpu_s)


def measured_time() -> MeasuredTime:
    times = os.times()
    return MeasuredTime(
        wall_s=time.monotonic(), cpu_s=times.user + times.system + times.children_user + times.children_system
    )
