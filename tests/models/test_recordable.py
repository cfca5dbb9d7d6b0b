"""Model files run on handles that hold nothing, so that an executor can record them once into a plan."""

from __future__ import annotations

import pytest

from kvist.models.registry import read_model
from kvist.models.weight_sources import ModelWeights
from kvist.weights.checkpoint import open_checkpoint


class Handle:
    """Refuses every question about its value."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise AssertionError("a model file looked at a value")


class Recorder:
    """Notes the name of every operation and checks that it is given handles only."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getattr__(self, name: str):
        def operation(*handles, **attributes):
            kept = [value for value in attributes.values() if isinstance(value, Handle)]
            assert all(isinstance(handle, Handle) or handle.__class__.__name__ == "LayerSpec" for handle in handles)
            self.names.append(f"{name}/{len(handles) + len(kept)}")
            return Handle()

        return operation


def record(model) -> list[str]:
    layers: list[dict[str, Handle]] = [{} for _ in range(model.spec.num_layers)]
    shared = {}
    for source in model.sources:
        (shared if source.layer is None else layers[source.layer])[source.name] = Handle()
    recorder = Recorder()
    model.architecture.forward(model.spec, recorder, ModelWeights(shared, layers))
    return recorder.names


@pytest.mark.parametrize("architecture", ["llama", "llama3", "mistral", "mixtral", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("weight_format", ["f32", "hf"])
def test_a_forward_pass_is_one_fixed_list_of_operations(tiny_model, architecture, weight_format):
    model = read_model(open_checkpoint(tiny_model(architecture, weight_format)))
    names = record(model)
    assert names == record(model)
    operations = [name.split("/")[0] for name in names]
    assert operations[0] == "embed"
    assert operations[-1] == "logits"
    assert operations.count("attention") == model.spec.num_layers
    assert operations.count("rope") == 2 * model.spec.num_layers
    assert operations.count("mixture_of_experts") == (model.spec.num_layers if model.spec.moe else 0)
