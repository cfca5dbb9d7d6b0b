"""Measures what this machine can do at most: reading memory, and each instruction set's own products on registers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kvist.execution.native import _native

MEMORY_BYTES = 768 << 20  # beyond a core's own caches, and most shared ones
NUM_REPEATS = 7
PIECES_PER_THREAD = 16  # so that a thread whose core is taken away does not decide the time
MIN_RUN_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The best of several short runs on all threads.

    memory_gb_per_s: reading a buffer larger than caches. resident_gb_per_s: reading one as large as the model's
    weights again and again, which a large shared cache may hold. bf16_gop_per_s: 0 where no kernel multiplies bfloat16.
    """

    isa: str
    memory_gb_per_s: float
    resident_gb_per_s: float
    resident_bytes: int
    int8_gop_per_s: float
    bf16_gop_per_s: float
    fp32_gop_per_s: float


def measure_ceilings(isa: str, pool: _native.ThreadPool, *, resident_bytes: int) -> Ceilings:
    """Measure for the kernels `isa` on the pool's threads. Takes about a second."""
    return Ceilings(
        isa=isa,
        memory_gb_per_s=_read_gb_per_s(isa, pool, MEMORY_BYTES),
        resident_gb_per_s=_read_gb_per_s(isa, pool, resident_bytes),
        resident_bytes=resident_bytes,
        int8_gop_per_s=_products_gop_per_s(isa, pool, "int8"),
        bf16_gop_per_s=_products_gop_per_s(isa, pool, "bfloat16"),
        fp32_gop_per_s=_products_gop_per_s(isa, pool, "float32"),
    )


def higher(first: Ceilings, second: Ceilings) -> Ceilings:
    """The better of two measurements of one machine: whatever else it does only takes time away."""
    names = ("memory_gb_per_s", "resident_gb_per_s", "int8_gop_per_s", "bf16_gop_per_s", "fp32_gop_per_s")
    return replace(first, **{name: max(getattr(first, name), getattr(second, name)) for name in names})


def _read_gb_per_s(isa: str, pool: _native.ThreadPool, num_bytes: int) -> float:
    piece = 1 << 20
    data = np.ones(max(num_bytes // piece, 1) * piece // 4, np.float32)
    return data.nbytes / 1e9 / _best_s(lambda: _native.read_once(isa, pool, data))


def _products_gop_per_s(isa: str, pool: _native.ThreadPool, dtype: str) -> float:
    items, iterations = PIECES_PER_THREAD * pool.num_threads, 1

    def run() -> float:
        return _native.run_products(isa, pool, dtype, iterations, items)

    if not run():
        return 0.0
    while _wall_s(run) < MIN_RUN_S:
        iterations *= 2
    return run() / 1e9 / _best_s(run)


def _best_s(run: Callable[[], object]) -> float:
    return min(_wall_s(run) for _ in range(NUM_REPEATS))


def _wall_s(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
