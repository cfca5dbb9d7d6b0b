"""Computes a step's batch in NumPy: runs the model's operations at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvist.core.step_plan import BlockMove
from kvist.execution.kv_storage import KVStorage
from kvist.execution.logits import NumpyLogits
from kvist.execution.reference.operations import NumpyOperations
from kvist.execution.runner import TakeLogits
from kvist.execution.step_batch import StepBatch
from kvist.execution.threads import MatrixProducts
from kvist.models.registry import Model
from kvist.models.weight_sources import ModelWeights

Array = NDArray[np.float32]


class NumpyRunner:
    """The oracle: plain, in float32."""

    def __init__(self, model: Model, weights: ModelWeights[Array], kv: KVStorage, products: MatrixProducts) -> None:
        self._model = model
        self._weights = weights
        self._kv = kv
        self._products = products
        self.description = f"reference {products.num_threads}"
        self.num_blocks = kv.num_blocks
        self.block_size = kv.block_size
        self.weight_bytes = sum(weight.nbytes for home in (weights.shared, *weights.layers) for weight in home.values())
        self.workspace_bytes = None

    def resize(self, max_num_tokens: int) -> None:
        pass  # every step makes its own arrays

    def preallocate(self) -> None:
        self._kv.preallocate(self.num_blocks)

    def run(
        self, batch: StepBatch, logit_rows: NDArray[np.int64], take_logits: TakeLogits, *, timed: bool = False
    ) -> NDArray[np.bool_]:
        """As Runner.run; operations are not timed."""

        def take(indices: range, logits: Array) -> None:
            finite = operations.finite_rows[logit_rows[indices.start : indices.stop]]
            take_logits(indices, NumpyLogits(logits, finite.tolist()))

        operations = NumpyOperations(batch, self._kv, self._products, logit_rows, take)
        # Numbers that overflow are looked for at the end.
        with np.errstate(all="ignore"), self._products.one_blas_thread():
            self._model.architecture.forward(self._model.spec, operations, self._weights)
        return operations.finite_rows

    def timings(self) -> list[tuple[str, float]]:
        return []

    def move(self, moves: Sequence[BlockMove]) -> None:
        self._kv.move(moves)

    def close(self) -> None:
        self._kv.close()
        self._products.close()
        del self._weights, self._kv
