"""Random numbers to try kernels on. NumPy's own generators would take 3 MiB in every process that serves."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_STEP = 0x9E3779B97F4A7C15
_MIXES = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)


class RandomBits:
    """The same sequence for the same seed: splitmix64 (Steele, Lea and Flood, 2014), a seed being where it begins."""

    def __init__(self, seed: int) -> None:
        self._position = seed << 40  # far from where the next one begins

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """The next `num_bytes` random bytes, which may be written to."""
        num_words = -(-num_bytes // 8)
        words = np.arange(num_words, dtype=np.uint64)
        words += np.uint64(self._position + 1)
        self._position += num_words
        words *= np.uint64(_STEP)
        for shift, factor in _MIXES:
            words ^= words >> np.uint64(shift)
            words *= np.uint64(factor)
        words ^= words >> _LAST_SHIFT
        return words.view(np.uint8)[:num_bytes]

    def uniform(self, least: float, most: float, count: int) -> NDArray[np.float32]:
        shares = self.take(4 * count).view(np.uint32).astype(np.float32) / np.float32(1 << 32)
        return np.float32(least) + np.float32(most - least) * shares

    def normal(self, *shape: int) -> NDArray[np.float32]:
        """About normal, of mean 0 and variance 1: sums of four uniform numbers."""
        words = self.take(8 * math.prod(shape)).view(np.uint16).reshape(-1, 4)
        sums = words.sum(axis=1, dtype=np.float32) - np.float32(2 * 65_535)
        normal: NDArray[np.float32] = (sums / np.float32(65_536 / math.sqrt(3))).reshape(shape)
        return normal
