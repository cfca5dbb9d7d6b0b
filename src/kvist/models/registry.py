"""Finds the model file for a checkpoint. The only list of supported architectures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from kvist.core.errors import UnsupportedModelError
from kvist.core.model_spec import ModelSpec
from kvist.models import gemma3, llama, mistral, mixtral, qwen2, qwen3
from kvist.models.metadata import Metadata
from kvist.models.ops import Operations
from kvist.models.weight_sources import ModelWeights, TensorNames, WeightSource, check_weight_sources
from kvist.weights.checkpoint import Checkpoint

T = TypeVar("T")
W = TypeVar("W")


class Architecture(Protocol):
    """What a model file offers."""

    MODEL_TYPE: str
    HF_MODEL_TYPES: tuple[str, ...]

    def parse_spec(self, checkpoint: Checkpoint) -> ModelSpec:
        """Read the spec. Raises CheckpointError for bad metadata, UnsupportedModelError for what it cannot do."""
        ...

    def weight_sources(self, spec: ModelSpec, names: TensorNames) -> Sequence[WeightSource]:
        """All weights that `forward` uses."""
        ...

    def forward(self, spec: ModelSpec, ops: Operations[T, W], weights: ModelWeights[W]) -> None:
        """One step over the batch that `ops` holds, ending in `ops.logits`."""
        ...


ARCHITECTURES: tuple[Architecture, ...] = (llama, qwen2, qwen3, mistral, gemma3, mixtral)
BY_HF_TYPE = {name: module for module in ARCHITECTURES for name in module.HF_MODEL_TYPES}
BY_GGUF_NAME: dict[str, Architecture] = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "gemma3": gemma3}


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint understood: its spec, its weights' sources and the file that computes it."""

    spec: ModelSpec
    sources: Sequence[WeightSource]
    architecture: Architecture


def read_model(checkpoint: Checkpoint) -> Model:
    """Parse and check everything but the weights' values. Raises CheckpointError, UnsupportedModelError."""
    architecture = find_architecture(checkpoint)
    spec = architecture.parse_spec(checkpoint)
    sources = architecture.weight_sources(spec, TensorNames(checkpoint))
    check_weight_sources(sources, spec, checkpoint)
    num_parameters = sum(math.prod(source.shape) for source in sources)
    return Model(replace(spec, num_parameters=num_parameters), tuple(sources), architecture)


def find_architecture(checkpoint: Checkpoint) -> Architecture:
    """The model file for the checkpoint. Raises UnsupportedModelError naming what it is and what there is."""
    fields = Metadata(checkpoint.metadata)
    if checkpoint.kind == "gguf":
        name, known = fields.text("general.architecture"), BY_GGUF_NAME
        if name == "llama" and fields.has("llama.expert_count") and fields.integer("llama.expert_count", low=0) > 0:
            return mixtral
    else:
        name, known = fields.text("model_type"), BY_HF_TYPE
    if name not in known:
        raise UnsupportedModelError(f"models of type {name!r} are not supported; supported are {', '.join(known)}")
    return known[name]
