"""Logits of the rows that a step asks for, as samplers read them: copied only where they must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class LogitRow(Protocol):
    """One row of logits. Equal logits are ordered by token id, lowest first."""

    @property
    def values(self) -> NDArray[np.float32]:
        """[vocab_size]; not to be written to. -inf is a token that cannot be."""
        ...

    @property
    def best(self) -> int:
        """Id of the largest."""
        ...

    def top(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids and logits of the `count` largest (all if there are no more), the largest first."""
        ...

    def weight_sum(self, temperature: float) -> float:
        """Sum of the weights e^((logit - largest) / temperature). The largest logit must be finite, here and below."""
        ...

    def draw(self, temperature: float, min_p: float, u: float) -> int:
        """The first id at which the running sum of weights, those below min_p left out, exceeds u of their total."""
        ...

    def with_values(self, values: NDArray[np.float32]) -> LogitRow:
        """Another row, to be looked through by the same means."""
        ...


class Logits(Protocol):
    """A tile of rows. Only lent: of no use once the next tile or step is computed.

    best: the id of each row's largest logit, of equals the lowest; only rows that are finite have one.
    """

    @property
    def is_finite(self) -> Sequence[bool]: ...

    @property
    def best(self) -> Sequence[int]: ...

    def __getitem__(self, index: int) -> LogitRow: ...


@dataclass(frozen=True, slots=True)
class NumpyRow:
    """A row in an array of its own."""

    values: NDArray[np.float32]

    @property
    def best(self) -> int:
        return int(self.values.argmax())

    def top(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        values = self.values
        count = min(count, len(values))
        if count == 0:
            return np.empty(0, np.int64), np.empty(0, values.dtype)
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        candidates = np.flatnonzero(values >= threshold)
        order = np.argsort(-values[candidates], kind="stable")  # candidates ascend, so equals stay in id order
        ids = candidates[order[:count]]
        return ids, values[ids]

    def weight_sum(self, temperature: float) -> float:
        return float(self._weights(temperature).sum())

    def draw(self, temperature: float, min_p: float, u: float) -> int:
        weights = self._weights(temperature)
        weights[weights < min_p] = 0.0
        return draw(weights, u)

    def with_values(self, values: NDArray[np.float32]) -> NumpyRow:
        return NumpyRow(values)

    def _weights(self, temperature: float) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = np.exp((self.values.astype(np.float64) - self.values.max()) / temperature)
        return weights


def draw(weights: NDArray[np.float64], u: float) -> int:
    """Inverse of the cumulative distribution: the first index whose running sum exceeds u of the total."""
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


@dataclass(frozen=True, slots=True)
class NumpyLogits:
    """Rows of one array. values: [num_rows, vocab_size]."""

    values: NDArray[np.float32]
    is_finite: Sequence[bool]

    @property
    def best(self) -> Sequence[int]:
        best: list[int] = self.values.argmax(axis=1).tolist()  # the first of equals
        return best

    def __getitem__(self, index: int) -> NumpyRow:
        return NumpyRow(self.values[index])
