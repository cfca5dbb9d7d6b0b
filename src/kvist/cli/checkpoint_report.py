"""What a checkpoint is, as data for `kvist inspect`: read from metadata and tensor headers, no weights touched."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from kvist.core.model_spec import ModelSpec
from kvist.models.registry import read_model
from kvist.weights.checkpoint import Checkpoint

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorKind:
    """All tensors whose names differ in numbers only."""

    name: str
    count: int
    shape: tuple[int, ...]  # of the first one
    formats: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """All that is known of a checkpoint without its weights."""

    path: str
    kind: str
    spec: ModelSpec
    num_parameters: int
    weight_bytes: int
    bytes_per_format: dict[str, int]
    tensor_kinds: tuple[TensorKind, ...]
    tokenizer: str
    has_chat_template: bool

    def as_json(self) -> dict[str, Any]:
        """Plain data. Layers that are alike are written once, with their count."""
        layers: list[dict[str, Any]] = []
        for layer in map(asdict, self.spec.layers):
            if layers and all(layers[-1][key] == value for key, value in layer.items()):
                layers[-1]["count"] += 1
            else:
                layers.append({"count": 1, **layer})
        plain = asdict(self)
        plain["spec"]["layers"] = layers
        return plain


def report_checkpoint(checkpoint: Checkpoint) -> CheckpointReport:
    """Raises what `read_model` raises for checkpoints that kvist cannot run."""
    return CheckpointReport(
        path=str(checkpoint.path),
        kind=checkpoint.kind,
        spec=read_model(checkpoint).spec,
        num_parameters=checkpoint.num_parameters,
        weight_bytes=checkpoint.weight_bytes,
        bytes_per_format=dict(checkpoint.bytes_per_format),
        tensor_kinds=tuple(tensor_kinds(checkpoint)),
        tokenizer=_tokenizer(checkpoint),
        has_chat_template=_has_chat_template(checkpoint),
    )


def tensor_kinds(checkpoint: Checkpoint) -> list[TensorKind]:
    """Tensors gathered by name without layer numbers, in the order of their first appearance."""
    groups: dict[str, list[str]] = {}
    for name in checkpoint.tensor_names:
        groups.setdefault(_LAYER_NUMBER.sub("*", name), []).append(name)
    result = []
    for pattern, names in groups.items():
        tensors = [checkpoint.tensor(name) for name in names]
        formats = Counter(tensor.format.name for tensor in tensors)
        result.append(
            TensorKind(
                name=pattern if len(names) > 1 else names[0],
                count=len(names),
                shape=tensors[0].shape,
                formats=tuple(name for name, _ in formats.most_common()),
                num_bytes=sum(len(tensor.data) for tensor in tensors),
            )
        )
    return result


def _tokenizer(checkpoint: Checkpoint) -> str:
    if checkpoint.kind == "hf":
        return "tokenizer.json" if checkpoint.side_file("tokenizer.json") else "none"
    kind = checkpoint.metadata.get("tokenizer.ggml.model")
    if kind is None:
        return "none"
    pre = checkpoint.metadata.get("tokenizer.ggml.pre")
    size = len(checkpoint.metadata.get("tokenizer.ggml.tokens", ()))
    return f"{kind}{f' ({pre})' if pre else ''}, {size} tokens"


def _has_chat_template(checkpoint: Checkpoint) -> bool:
    if checkpoint.kind == "gguf":
        return "tokenizer.chat_template" in checkpoint.metadata
    if any(checkpoint.side_file(name) for name in ("chat_template.jinja", "chat_template.json")):
        return True
    return bool((checkpoint.side_json("tokenizer_config.json") or {}).get("chat_template"))
