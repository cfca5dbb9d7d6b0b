"""How many threads the matrix products may use."""

from __future__ import annotations

import os
from pathlib import Path

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # ships no types

CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def limit_blas_threads(num_threads: int | None) -> int:
    """Let NumPy's BLAS use `num_threads` threads from now on, in this process. Returns how many it uses.

    None: what it uses already (the process's cores, or what its own environment says), at most the cgroup's grant.
    """
    blas = ThreadpoolController().select(user_api="blas")
    current = max((library["num_threads"] for library in blas.info()), default=1)
    wanted = num_threads or min(current, granted_cores())
    if wanted != current:
        blas.limit(limits=wanted)
    return wanted


def granted_cores(cpu_limit: Path = CGROUP_CPU_LIMIT) -> int:
    """Cores that this process may run on, rounded down; at least one. Respects affinity and the cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_limit.read_text().split()
    except (OSError, ValueError):  # no such cgroup, or one without a CPU controller
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
