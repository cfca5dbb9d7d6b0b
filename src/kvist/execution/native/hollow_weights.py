"""Weights with the shapes and formats of a checkpoint's and no values: enough to record a plan, at no cost."""

from __future__ import annotations

import numpy as np

from kvist.execution.native.load_weights import all_packings, weight_name
from kvist.execution.native.packed_weights import Weight
from kvist.models.registry import Model
from kvist.models.weight_sources import ModelWeights
from kvist.weights.checkpoint import Checkpoint


def hollow_weights(checkpoint: Checkpoint, model: Model) -> ModelWeights[Weight]:
    """All weights of `model`, as `load_packed_weights` would lay them out. Reads none of the checkpoint's numbers."""
    packings = all_packings(checkpoint, model)
    # Bytes that all matrices share. They are never read, so they take no memory.
    nothing = np.zeros(max(packing.num_bytes for parts in packings.values() for packing in parts), np.uint8)
    shared: dict[str, Weight] = {}
    layers: list[dict[str, Weight]] = [{} for _ in range(model.spec.num_layers)]
    for source in model.sources:
        matrices = tuple(packing.matrix(nothing[: packing.num_bytes]) for packing in packings[weight_name(source)])
        home = shared if source.layer is None else layers[source.layer]
        if len(source.shape) == 1:
            home[source.name] = np.ones(source.shape, np.float32)
        else:
            home[source.name] = matrices if len(source.shape) == 3 else matrices[0]
    return ModelWeights(shared, layers)
