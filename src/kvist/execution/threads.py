"""Matrix products on several threads that sleep while they wait.

BLAS libraries have threads of their own, but those spin: where another process wants a core too, a decode step of
the default model on two spinning threads took ten times as long as on one. So BLAS gets one thread, and a product is
cut here into as many column ranges of its result as there are threads.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # ships no types

Array = NDArray[np.float32]

CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
MIN_WORK = 1 << 19  # multiplications for which waking a thread pays


class MatrixProducts:
    """Computes x @ weight.T on `num_threads` threads. None: the process's cores, at most the cgroup's grant and what
    the environment allows BLAS."""

    def __init__(self, num_threads: int | None = None) -> None:
        self._blas = ThreadpoolController().select(user_api="blas")
        allowed = max((library["num_threads"] for library in self._blas.info()), default=1)
        self.num_threads = num_threads or min(allowed, granted_cores())
        self._pool = ThreadPoolExecutor(self.num_threads - 1, "products") if self.num_threads > 1 else None

    def one_blas_thread(self) -> AbstractContextManager[object]:
        """While it is open BLAS uses one thread; afterwards what it used before. To be held around `multiply`."""
        context: AbstractContextManager[object] = self._blas.limit(limits=1)
        return context

    def multiply(self, x: Array, weight: Array) -> Array:
        """x @ weight.T: x [rows, in], weight [out, in], result [rows, out]."""
        if self._pool is None or len(x) * weight.size < MIN_WORK:
            return x @ weight.T
        out = np.empty((len(x), len(weight)), np.float32)
        cuts = [len(weight) * i // self.num_threads for i in range(self.num_threads + 1)]
        parts = [slice(first, last) for first, last in pairwise(cuts)]
        waiting = [self._pool.submit(np.matmul, x, weight[part].T, out=out[:, part]) for part in parts[1:]]
        np.matmul(x, weight[parts[0]].T, out=out[:, parts[0]])
        for part_done in waiting:
            part_done.result()
        return out

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def granted_cores(cpu_limit: Path = CGROUP_CPU_LIMIT) -> int:
    """Cores that this process may run on, rounded down; at least one. Respects affinity and the cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_limit.read_text().split()
    except (OSError, ValueError):  # no such cgroup, or one without a CPU controller
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
