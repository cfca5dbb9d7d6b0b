"""Least squares with no coefficient below zero, for a few dozen columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_ROUNDS = 500
ENOUGH = 1e-10  # of the target's square: an improvement below it is none

Floats = NDArray[np.float64]


def nonnegative_least_squares(columns: Floats, target: Floats) -> Floats:
    """x >= 0 for which |columns x - target| is least; Lawson and Hanson's active set method (1974)."""
    num = columns.shape[1]
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = columns / scale
    x = np.zeros(num)
    is_free = np.zeros(num, dtype=bool)
    tolerance = ENOUGH * float(np.dot(target, target)) ** 0.5
    for _ in range(MAX_ROUNDS):
        gradient = scaled.T @ (target - scaled @ x)
        gradient[is_free] = -np.inf
        entering = int(np.argmax(gradient))
        if is_free.all() or gradient[entering] <= tolerance:
            break
        is_free[entering] = True
        _solve_free(scaled, target, x, is_free)
    result: Floats = x / scale
    return result


def _solve_free(columns: Floats, target: Floats, x: Floats, is_free: NDArray[np.bool_]) -> None:
    """Move x to the solution over the free columns; those that would fall below zero stop there."""
    while is_free.any():
        trial = np.zeros_like(x)
        trial[is_free] = np.linalg.lstsq(columns[:, is_free], target, rcond=None)[0]
        if (trial[is_free] > 0.0).all():
            x[:] = trial
            return
        falling = is_free & (trial <= 0.0)
        share = float(np.min(x[falling] / np.maximum(x[falling] - trial[falling], 1e-300)))
        x += share * (trial - x)
        is_free &= x > 1e-14
        x[~is_free] = 0.0
