"""The native plan without what it gains by: operations apart instead of fused, and sent one by one from Python.

The kernels are the engine's own in all of them, so a difference is what fusing, or recording a plan ahead, is worth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvist.execution.native import _native
from kvist.execution.native.runner import NativeRunner
from kvist.execution.native.traced_plan import TracedPlan

TILE = 16  # outputs of a linear are padded to it


class UnfusedPlan(TracedPlan):
    """Each operation on its own, with its result in memory before the next: norm, quantize, one linear after the other,
    activation, addition to the residual stream.
    """

    def __init__(self, isa: str, pool: _native.ThreadPool, max_tokens: int, max_rows: int) -> None:
        super().__init__(isa, pool, max_tokens, max_rows)
        self._temporaries: dict[tuple[str, int], int] = {}

    def norm_quantize(self, x: int, weight: NDArray[np.float32], eps: float, out: int) -> None:
        width = len(weight)
        normed = self._temporary("normed", width)
        self.norm(x, 0, weight, eps, width, 1, normed, 0)
        self.quantize(normed, 0, out)

    def linear(self, weights: list[_native.Weight], columns: list[int], x: int, out: int, *, accumulate: bool) -> None:
        for weight, column in zip(weights, columns, strict=True):
            if not accumulate:
                super().linear([weight], [column], x, out, accumulate=False)
                continue
            product = self._temporary("product", -(-weight.n // TILE) * TILE)
            super().linear([weight], [0], x, product, accumulate=False)
            assert column == 0, "the residual stream is a buffer of its own"
            self.add(out, product, weight.n)

    def linear_dense(
        self, weight: _native.Weight, x: int, x_column: int, out: int, column: int, *, accumulate: bool
    ) -> None:
        if not accumulate:
            super().linear_dense(weight, x, x_column, out, column, accumulate=False)
            return
        product = self._temporary("product", -(-weight.n // TILE) * TILE)
        super().linear_dense(weight, x, x_column, product, 0, accumulate=False)
        assert column == 0, "the residual stream is a buffer of its own"
        self.add(out, product, weight.n)

    def gated_linear(self, gate: _native.Weight, up: _native.Weight, x: int, kind: int, out: int) -> None:
        width = -(-gate.n // TILE) * TILE
        both = self._temporary("gate and up", 2 * width)
        super().linear([gate], [0], x, both, accumulate=False)
        super().linear([up], [width], x, both, accumulate=False)
        gated = self._temporary("gated", gate.n)
        self.gated(both, 0, width, kind, gate.n, gated, to_quantize=True)
        self.quantize(gated, 0, out)

    def gated_quantize(self, x: int, gate_column: int, up_column: int, kind: int, out: int) -> None:
        width = up_column - gate_column
        gated = self._temporary("gated", width)
        self.gated(x, gate_column, up_column, kind, width, gated, to_quantize=True)
        self.quantize(gated, 0, out)

    def attention(self, *arguments: Any) -> None:
        """Any: as the plan's own. The fifth is the buffer of what is attended, the sixth where it goes quantized."""
        changed = list(arguments)
        out, quantized = changed[4], changed[5]
        changed[5] = -1
        super().attention(*changed)
        if quantized >= 0:
            self.quantize(out, 0, quantized)

    def _temporary(self, role: str, width: int) -> int:
        """A buffer for `role`; its reader is done with it before the next layer writes it."""
        if (role, width) not in self._temporaries:
            self._temporaries[role, width] = self.buffer(width)
        return self._temporaries[role, width]


class EagerPlan(TracedPlan):
    """The fused operations, each sent from Python when it is due, as an eager framework does."""

    def replay(self, *arguments: Any, timed: bool, **more: Any) -> None:
        """Any: as the plan's own."""
        for index in range(self.num_operations):
            super().replay(*arguments, timed=timed, first=index, count=1)

    def replay_head(self, *arguments: Any, timed: bool, **more: Any) -> None:
        """Any: as the plan's own."""
        for index in range(self.num_operations):
            super().replay_head(*arguments, timed=timed, first=index, count=1)


class EagerUnfusedPlan(UnfusedPlan):
    """Neither fused nor recorded ahead. As EagerPlan: the compiled class takes no second base."""

    def replay(self, *arguments: Any, timed: bool, **more: Any) -> None:
        """Any: as the plan's own."""
        for index in range(self.num_operations):
            super().replay(*arguments, timed=timed, first=index, count=1)

    def replay_head(self, *arguments: Any, timed: bool, **more: Any) -> None:
        """Any: as the plan's own."""
        for index in range(self.num_operations):
            super().replay_head(*arguments, timed=timed, first=index, count=1)


class UnfusedRunner(NativeRunner):
    def _new_plan(self, max_num_tokens: int) -> TracedPlan:
        return UnfusedPlan(self._isa, self._pool, max_num_tokens, self._max_num_rows)


class EagerRunner(NativeRunner):
    def _new_plan(self, max_num_tokens: int) -> TracedPlan:
        return EagerPlan(self._isa, self._pool, max_num_tokens, self._max_num_rows)


class EagerUnfusedRunner(NativeRunner):
    def _new_plan(self, max_num_tokens: int) -> TracedPlan:
        return EagerUnfusedPlan(self._isa, self._pool, max_num_tokens, self._max_num_rows)
