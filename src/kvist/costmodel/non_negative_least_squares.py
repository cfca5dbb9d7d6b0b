"""Least squares in a few unknowns, none of which may be negative, without a matrix library."""

from __future__ import annotations

from collections.abc import Sequence


def solve_non_negative(gram: Sequence[Sequence[float]], moment: Sequence[float]) -> list[float]:
    """Return x >= 0 for which |A x - b| is small. gram: A^T A, positive definite. moment: A^T b.

    Unknowns that come out negative are held at 0 and the rest is solved again: the minimum if those are the right ones,
    which for the few counts of a step they are as a rule, and never negative.
    """
    free = list(range(len(moment)))
    while free:
        values = _solve([[gram[row][column] for column in free] for row in free], [moment[row] for row in free])
        if min(values) >= 0.0:
            found = dict(zip(free, values, strict=True))
            return [found.get(index, 0.0) for index in range(len(moment))]
        free = [index for index, value in zip(free, values, strict=True) if value > 0.0]
    return [0.0] * len(moment)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination; a positive definite matrix needs no pivoting."""
    size = len(right)
    for step in range(size):
        pivot_row = matrix[step]
        for below in range(step + 1, size):
            factor = matrix[below][step] / pivot_row[step]
            if factor != 0.0:
                row = matrix[below]
                for column in range(step + 1, size):
                    row[column] -= factor * pivot_row[column]
                right[below] -= factor * right[step]
    for step in range(size - 1, -1, -1):
        row = matrix[step]
        for column in range(step + 1, size):
            right[step] -= row[column] * right[column]
        right[step] /= row[step]
    return right
