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
    def values(self) -> NDArray[np.floating]:
        """[vocab_size]; not to be written to."""
        ...

    @property
    def best(self) -> int:
        """Id of the largest."""
        ...

    def top(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
        """Ids and logits of the `count` largest (all if there are no more), the largest first."""
        ...

    def log_sum_exp(self) -> float:
        """What turns a logit into a log-probability."""
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

    values: NDArray[np.floating]

    @property
    def best(self) -> int:
        return int(self.values.argmax())

    def top(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
        values = self.values
        count = min(count, len(values))
        if count == 0:
            return np.empty(0, np.int64), np.empty(0, values.dtype)
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        candidates = np.flatnonzero(values >= threshold)
        order = np.argsort(-values[candidates], kind="stable")  # candidates ascend, so equals stay in id order
        ids = candidates[order[:count]]
        return ids, values[ids]

    def log_sum_exp(self) -> float:
        logits = self.values.astype(np.float64)
        largest = logits.max()
        return float(largest + np.log(np.exp(logits - largest).sum()))


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
