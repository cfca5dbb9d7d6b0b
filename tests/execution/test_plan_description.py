"""The recorded plan tells what it does, and folds what repeats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.config.engine_config import EngineConfig
from kvist.execution.loading import describe_plan
from kvist.execution.native.hollow_weights import hollow_weights
from kvist.execution.native.load_weights import load_packed_weights
from kvist.execution.native.packed_weights import Matrix
from kvist.execution.native.plan_description import fold, ops_per_token, weight_bytes
from kvist.models.registry import read_model
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.random_model import make_random_model


def plan_of(path):
    checkpoint = open_checkpoint(path)
    return describe_plan(checkpoint, EngineConfig(), max_num_tokens=64), read_model(checkpoint).spec


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3", "mixtral"])
@pytest.mark.parametrize("weight_format", ["q4_k_m", "q8_0", "hf"])
def test_a_plan_multiplies_with_every_matrix_once(tiny_model, architecture, weight_format):
    path = tiny_model(architecture, weight_format)
    plan, spec = plan_of(path)
    checkpoint = open_checkpoint(path)
    weights = load_packed_weights(checkpoint, read_model(checkpoint))
    matrices = [
        matrix
        for home in (weights.shared, *weights.layers)
        for weight in home.values()
        for matrix in (weight if isinstance(weight, tuple) else (weight,))
        if isinstance(matrix, Matrix)
    ]
    table = sum(weight_bytes(operation) for operation in plan.body if operation.name == "embed")
    read = sum(weight_bytes(operation) for operation in (*plan.body, *plan.head)) - table
    unread = 0 if spec.tie_embeddings else table
    assert read == sum(matrix.values.nbytes for matrix in matrices) - unread


def test_work_is_that_of_the_shape(tiny_model):
    plan, spec = plan_of(tiny_model("llama", "q8_0"))
    head_width = spec.head_dim * (2 * spec.num_q_heads + 2 * spec.num_kv_heads)
    layer = spec.hidden_size * (head_width + 3 * spec.intermediate_size)
    wanted = 2 * (spec.num_layers * layer + spec.vocab_size * spec.hidden_size)
    assert sum(ops_per_token(operation, spec) for operation in (*plan.body, *plan.head)) == wanted


def test_experts_count_as_often_as_a_token_uses_them(tiny_model):
    plan, spec = plan_of(tiny_model("mixtral", "q8_0"))
    experts = [ops_per_token(operation, spec) for operation in plan.body if operation.name == "expert_linear"]
    assert experts == [2 * 2 * spec.hidden_size * spec.intermediate_size] * 3 * spec.num_layers


@pytest.mark.parametrize("architecture", ["llama", "mixtral", "gemma3"])
@pytest.mark.parametrize("weight_format", ["f32", "q4_k_m", "q6_k"])
def test_hollow_weights_have_the_shapes_of_packed_ones(tiny_model, architecture, weight_format):
    checkpoint = open_checkpoint(tiny_model(architecture, weight_format))
    model = read_model(checkpoint)
    hollow, packed = hollow_weights(checkpoint, model), load_packed_weights(checkpoint, model)

    def shapes(weights):
        def shape(weight):
            if isinstance(weight, tuple):
                return [shape(part) for part in weight]
            if isinstance(weight, Matrix):
                return weight.format, weight.num_outputs, weight.width, weight.values.nbytes
            return weight.shape

        return [{name: shape(weight) for name, weight in home.items()} for home in (weights.shared, *weights.layers)]

    assert shapes(hollow) == shapes(packed)


def test_layers_that_are_alike_are_folded(tmp_path):
    make_random_model("tiny-llama", "q8_0", tmp_path / "model.gguf", layers=5)
    plan, _ = plan_of(tmp_path / "model.gguf")
    assert [run.count for run in fold(plan.body)] == [1, 4, 1]  # the last layer keeps fewer rows


@given(st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 3), min_size=1, max_size=5)), max_size=5))
def test_folding_loses_nothing(runs):
    items = [item for count, pattern in runs for item in pattern * count]
    assert [item for run in fold(items) for item in run.items * run.count] == items
