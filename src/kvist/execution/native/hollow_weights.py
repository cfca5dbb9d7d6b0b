"""Weights with the shapes and formats of a checkpoint's and no values: enough to record a plan, at no cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvist.execution.native.packed_weights import Matrix, Weight, experts_of, layout_of
from kvist.models.registry import Model
from kvist.models.weight_sources import ModelWeights, WeightSource
from kvist.weights.checkpoint import Checkpoint
from kvist.weights.tensor import Tensor


def hollow_weights(checkpoint: Checkpoint, model: Model) -> ModelWeights[Weight]:
    """All weights of `model`, as `load_packed_weights` would lay them out. Reads none of the checkpoint's numbers."""
    nothing = _Nothing()
    shared: dict[str, Weight] = {}
    layers: list[dict[str, Weight]] = [{} for _ in range(model.spec.num_layers)]
    for source in model.sources:
        home = shared if source.layer is None else layers[source.layer]
        home[source.name] = _hollow(checkpoint, source, nothing)
    return ModelWeights(shared, layers)


class _Nothing:
    """Bytes that all matrices share. They are never read, so they take no memory."""

    def __init__(self) -> None:
        self._bytes = np.zeros(0, np.uint8)

    def matrix(self, tensor: Tensor) -> Matrix:
        kind, width, size = layout_of(tensor)
        if size > len(self._bytes):
            self._bytes = np.zeros(size, np.uint8)
        values: NDArray[np.uint8] = self._bytes[:size]
        return Matrix(kind, tensor.shape[0], width, values)


def _hollow(checkpoint: Checkpoint, source: WeightSource, nothing: _Nothing) -> Weight:
    if len(source.shape) == 1:
        return np.ones(source.shape, np.float32)
    tensors = [checkpoint.tensor(name) for name in source.tensors]
    if len(source.shape) == 3:
        return tuple(nothing.matrix(expert) for tensor in tensors for expert in experts_of(tensor))
    return nothing.matrix(tensors[0])
