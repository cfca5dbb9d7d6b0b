"""What else the machine did during a run, and whether that was too much: bounds fixed before any error is known."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

MAX_OTHERS_SHARE = 0.05  # of the machine's time, by other processes
MAX_STEAL_SHARE = 0.02  # taken by the host of a virtual machine
MAX_PROBE_CHANGE = 0.15  # of the time of one and the same step before and after, against its median over all parts
STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since the machine started, over all cores: computing, and stolen. None where the system does not tell."""

    busy_s: float | None
    steal_s: float | None


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What went on around one run. Shares are of the time of all cores; None: not known.

    probe_s: a fixed step's shortest time, before and after the run.
    """

    others_share: float | None
    steal_share: float | None
    probe_s: tuple[float, float]

    @property
    def taken_share(self) -> float:
        """Of the machine's time, by all but this process."""
        return (self.others_share or 0.0) + (self.steal_share or 0.0)

    def faults(self, usual_probe_s: float | None = None) -> list[str]:
        """Why the run does not count as quiet; empty if it does. None: before it is known what is usual."""
        found = []
        if self.others_share is not None and self.others_share > MAX_OTHERS_SHARE:
            found.append(f"other processes took {self.others_share:.0%} of the machine")
        if self.steal_share is not None and self.steal_share > MAX_STEAL_SHARE:
            found.append(f"the host took {self.steal_share:.0%}")
        change = 0.0 if usual_probe_s is None else min(self.probe_s) / usual_probe_s - 1.0
        if change > MAX_PROBE_CHANGE:
            found.append(f"one and the same step took {change:.0%} longer than usual, before and after")
        return found


def read_cpu_times(stat: Path = STAT) -> CpuTimes:
    try:
        first = stat.read_text(encoding="ascii").splitlines()[0].split()
        user, nice, system, _, _, irq, softirq, steal = map(int, first[1:9])
    except (OSError, ValueError, IndexError):
        return CpuTimes(None, None)  # not Linux
    ticks = os.sysconf("SC_CLK_TCK")
    return CpuTimes((user + nice + system + irq + softirq) / ticks, steal / ticks)


def surroundings(
    before: CpuTimes, after: CpuTimes, *, elapsed_s: float, own_s: float, probe_s: tuple[float, float]
) -> Surroundings:
    """own_s: CPU time of this process between the two."""
    machine_s = max(elapsed_s * (os.cpu_count() or 1), 1e-9)
    others = steal = None
    if before.busy_s is not None and after.busy_s is not None:
        others = max(0.0, after.busy_s - before.busy_s - own_s) / machine_s
    if before.steal_s is not None and after.steal_s is not None:
        steal = (after.steal_s - before.steal_s) / machine_s
    return Surroundings(others_share=others, steal_share=steal, probe_s=probe_s)
