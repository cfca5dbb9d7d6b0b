"""Few combinations of options in which every pair of values of two options occurs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any


def all_pairs(axes: Mapping[str, Sequence[Any]], *, num_candidates: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """Greedy: of some random combinations, always the one with the most pairs that are still missing."""
    names, draw = list(axes), random.Random(seed)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(axes[names[a]]))
        for j in range(len(axes[names[b]]))
    }
    chosen: list[list[int]] = []
    while missing:
        best: tuple[set[tuple[int, int, int, int]], list[int]] = (set(), [])
        for _ in range(num_candidates):
            row = [draw.randrange(len(axes[name])) for name in names]
            a, i, b, j = draw.choice(sorted(missing))
            row[a], row[b] = i, j
            pairs = {(a, row[a], b, row[b]) for a, b in itertools.combinations(range(len(names)), 2)}
            if len(pairs & missing) > len(best[0]):
                best = (pairs & missing, row)
        missing -= best[0]
        chosen.append(best[1])
    return [{name: axes[name][i] for name, i in zip(names, row, strict=True)} for row in chosen]
