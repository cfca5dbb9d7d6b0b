"""Reads a checkpoint's weights into float32 arrays, once, at load."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvist.models.registry import Model
from kvist.models.weight_sources import ModelWeights, WeightSource
from kvist.weights.checkpoint import Checkpoint

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def load_weights(
    checkpoint: Checkpoint, model: Model, progress: Progress | None = None
) -> ModelWeights[NDArray[np.float32]]:
    """Dequantize all weights of `model`. Calls `progress` after each with stored bytes done and in all."""
    total = sum(len(checkpoint.tensor(name).data) for source in model.sources for name in source.tensors)
    shared: dict[str, NDArray[np.float32]] = {}
    layers: list[dict[str, NDArray[np.float32]]] = [{} for _ in range(model.spec.num_layers)]
    done = 0
    for source in model.sources:
        home = shared if source.layer is None else layers[source.layer]
        home[source.name] = _load(checkpoint, source)
        done += sum(len(checkpoint.tensor(name).data) for name in source.tensors)
        if progress is not None:
            progress(done, total)
    return ModelWeights(shared, layers)


def _load(checkpoint: Checkpoint, source: WeightSource) -> NDArray[np.float32]:
    parts = [checkpoint.tensor(name).dequantize() for name in source.tensors]
    weight = parts[0] if len(parts) == 1 else np.stack(parts)
    # A file's own F32 bytes stay where they are, mapped; the sum makes a copy.
    return weight + np.float32(1) if source.plus_one else weight
