"""Seeded draws, the same on any host: no generator state exists outside a stream's own position."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from statistics import NormalDist

from kvist.core.random_numbers import uniform

_NORMAL = NormalDist()


class RandomStream:
    """One named sequence of draws. Streams of other names or seeds are independent of it."""

    def __init__(self, seed: int, name: str) -> None:
        self._key = int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")
        self._position = 0

    def uniform(self) -> float:
        """In [0, 1)."""
        self._position += 1
        return uniform(self._key, 0, self._position)

    def integer(self, low: int, high: int) -> int:
        """Any of low..high, both included, with equal probability."""
        return low + int(self.uniform() * (high - low + 1))

    def exponential(self, mean: float) -> float:
        return -mean * math.log1p(-self.uniform())

    def normal(self) -> float:
        """Mean 0, standard deviation 1, by inversion."""
        return _NORMAL.inv_cdf((self.uniform() * 2**52 + 0.5) * 2.0**-52)

    def gamma(self, shape: float, mean: float) -> float:
        """Gamma distributed (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000)."""
        if shape < 1.0:
            boost = math.pow(1.0 - self.uniform(), 1.0 / shape)
            return self.gamma(shape + 1.0, mean * (shape + 1.0) / shape) * boost
        d = shape - 1.0 / 3.0
        while True:
            x = self.normal()
            v = (1.0 + x / math.sqrt(9.0 * d)) ** 3
            if v > 0.0 and math.log1p(-self.uniform()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return mean * d * v / shape

    def index(self, cumulative: Sequence[float]) -> int:
        """An index, drawn by the differences of `cumulative`, which rises to its last entry."""
        return min(bisect_right(cumulative, self.uniform() * cumulative[-1]), len(cumulative) - 1)
