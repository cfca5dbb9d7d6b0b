"""A small robust Levenberg-Marquardt solver: few parameters, residuals that may have outliers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

MAX_ITERATIONS = 60
STEP = 1e-4  # of the numerical derivative
CAUCHY = 2.0  # residuals of this many deviations count half


def minimize(
    residuals: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    start: Sequence[float],
    spread: Sequence[float],
    *,
    first: Sequence[float] | None = None,
) -> NDArray[np.float64]:
    """The parameters near `start` for which residuals (in standard deviations) are least, outliers counting less.

    Each parameter is drawn to its start as by one more residual of standard deviation `spread`.
    first: where to begin the search.
    """
    x0 = np.asarray(start, dtype=np.float64)
    width = np.asarray(spread, dtype=np.float64)
    x = x0.copy() if first is None else np.asarray(first, dtype=np.float64)
    damping = 1e-2
    cost = robust_cost(residuals(x), (x - x0) / width)
    for _ in range(MAX_ITERATIONS):
        error = residuals(x)
        jacobian = np.stack([(residuals(x + STEP * unit) - error) / STEP for unit in np.eye(len(x))], axis=1)
        weight = 1.0 / (1.0 + (error / CAUCHY) ** 2)
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(width**-2)
        gradient = jacobian.T @ (weight * error) + (x - x0) / width**2
        improved = False
        while damping < 1e8:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial = x - np.clip(step, -1.0, 1.0)
            trial_cost = robust_cost(residuals(trial), (trial - x0) / width)
            if trial_cost < cost:
                improved = cost - trial_cost > 1e-4 * cost
                x, cost, damping = trial, trial_cost, max(damping / 5.0, 1e-9)
                break
            damping *= 4.0
        if not improved:
            break
    return x


def robust_cost(error: NDArray[np.float64], drift: NDArray[np.float64]) -> float:
    """What `minimize` makes small: the sum over residuals, of little more weight beyond CAUCHY, and over drifts."""
    return float(np.sum(CAUCHY**2 * np.log1p((error / CAUCHY) ** 2)) + np.sum(drift**2))
