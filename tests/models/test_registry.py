"""Checkpoints of all supported kinds are understood; everything else is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.core.model_spec import MoESpec, RopeScaling
from kvist.models.registry import BY_HF_TYPE, read_model
from kvist.weights.checkpoint import Checkpoint, open_checkpoint

ARCHITECTURES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma3")


def changed(checkpoint: Checkpoint, *, drop: str = "", **values) -> Checkpoint:
    """The checkpoint with other metadata (dots written as __, None removes) or without a tensor."""
    metadata = {**checkpoint.metadata, **{key.replace("__", "."): value for key, value in values.items()}}
    return replace(
        checkpoint,
        metadata={key: value for key, value in metadata.items() if value is not None},
        tensors={name: tensor for name, tensor in checkpoint.tensors.items() if name != drop},
    )


@pytest.fixture
def hf(tiny_model):
    return lambda architecture="llama": open_checkpoint(tiny_model(architecture, "hf"))


@pytest.fixture
def gguf(tiny_model):
    return lambda architecture="llama": open_checkpoint(tiny_model(architecture, "f32"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_sources_of_a_model_give_the_same_spec(gguf, hf, architecture):
    ours, theirs = read_model(gguf(architecture)), read_model(hf(architecture))
    assert theirs.spec.model_type == architecture
    assert ours.spec.norm_eps == pytest.approx(theirs.spec.norm_eps)  # float32 in the one, float64 in the other
    neutral = {"model_type": "", "rope_interleaved": False, "weight_bytes": 0, "norm_eps": 0}
    assert replace(ours.spec, **neutral) == replace(theirs.spec, **neutral)
    assert [(s.name, s.layer, s.shape) for s in ours.sources] == [(s.name, s.layer, s.shape) for s in theirs.sources]


def test_traits_of_the_architectures_are_read(hf):
    assert read_model(hf("llama3")).spec.layers[0].rope_scaling == RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64
    )
    assert read_model(hf("mistral")).spec.layers[0].sliding_window == 24
    assert read_model(hf("mixtral")).spec.moe == MoESpec(num_experts=4, num_experts_per_token=2)
    assert read_model(hf("qwen2")).spec.qkv_bias
    assert read_model(hf("qwen3")).spec.qk_norm
    gemma = read_model(hf("gemma3")).spec
    assert [layer.sliding_window for layer in gemma.layers] == [24] * 5 + [None]
    assert [layer.rope_theta for layer in gemma.layers] == [10_000.0] * 5 + [1_000_000.0]
    assert gemma.embedding_scale == 8.0
    assert gemma.activation == "gelu_tanh"


def test_unknown_architectures_are_refused_by_name_with_what_there_is(hf, gguf):
    with pytest.raises(UnsupportedModelError, match=r"'mamba'.*supported are llama, qwen2"):
        read_model(changed(hf(), model_type="mamba"))
    with pytest.raises(UnsupportedModelError, match="'falcon'"):
        read_model(changed(gguf(), general__architecture="falcon"))
    with pytest.raises(CheckpointError, match="'model_type'"):
        read_model(changed(hf(), model_type=None))
    assert "gemma3_text" in BY_HF_TYPE


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"hidden_size": "64"}, "'hidden_size' must be a whole number"),
        ({"hidden_size": True}, "'hidden_size' must be a whole number"),
        ({"hidden_size": 0}, "'hidden_size' must be a whole number from 1"),
        ({"num_hidden_layers": 10**6}, "'num_hidden_layers' must be a whole number from 1 to"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' must be a number"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"head_dim": 15}, "head size 15 is odd"),
        ({"num_hidden_layers": 3}, r"lacks the tensor 'model\.layers\.2\."),
        ({"num_hidden_layers": 1}, r"have no place.*model\.layers\.1\."),
        ({"intermediate_size": 128}, r"gate_proj.*\(256, 64\).*\(128, 64\)"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "lacks 'low_freq_factor'"),
        ({"rope_scaling": "linear"}, "'rope_scaling' must be an object"),
        ({"attention_bias": True}, "attention_bias"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' must be true or false"),
        ({"tie_word_embeddings": False}, r"lacks the tensor 'lm_head\.weight'"),
    ],
)
def test_bad_metadata_is_refused_naming_the_key(hf, values, message):
    with pytest.raises(CheckpointError, match=message):
        read_model(changed(hf(), **values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"llama__embedding_length": None}, r"lacks 'llama\.embedding_length'"),
        ({"llama__attention__head_count": [4, 4]}, r"'llama\.attention\.head_count' must be a whole number"),
        ({"llama__rope__scaling__type": "yarn"}, "'yarn'"),
        ({"llama__rope__dimension_count": 8}, "differs from the key head size 16"),
        ({"llama__expert_count": 4, "llama__expert_used_count": 9}, "9 of 4 experts"),
    ],
)
def test_bad_gguf_metadata_is_refused_naming_the_key(gguf, values, message):
    with pytest.raises(CheckpointError, match=message):
        read_model(changed(gguf(), **values))


def test_missing_and_surplus_tensors_are_named(gguf):
    with pytest.raises(CheckpointError, match=r"lacks the tensor 'blk\.0\.attn_q\.weight'"):
        read_model(changed(gguf(), drop="blk.0.attn_q.weight"))
    with pytest.raises(CheckpointError, match=r"lacks the tensor 'token_embd\.weight'"):
        read_model(changed(gguf(), drop="token_embd.weight"))
    biased = gguf("qwen2")
    metadata = {key.replace("qwen2.", "llama."): value for key, value in biased.metadata.items()}
    with pytest.raises(UnsupportedModelError, match=r"have no place in a llama model.*attn_k\.bias"):
        read_model(replace(biased, metadata={**metadata, "general.architecture": "llama"}))


def test_new_style_rope_parameters_are_read(hf):
    parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 12345.0}
    spec = read_model(changed(hf(), rope_theta=None, rope_scaling=None, rope_parameters=parameters)).spec
    assert spec.layers[0].rope_theta == 12345.0
    assert spec.layers[0].rope_scaling == RopeScaling(kind="linear", factor=2.0)
    by_kind = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    }
    layers = read_model(changed(hf("gemma3"), rope_theta=None, rope_parameters=by_kind)).spec.layers
    assert (layers[0].rope_theta, layers[0].rope_scaling) == (5e3, None)
    assert (layers[5].rope_theta, layers[5].rope_scaling) == (1e6, RopeScaling(kind="linear", factor=8.0))


def test_a_multimodal_gemma_is_read_by_its_text_part(hf):
    text = hf("gemma3")
    inner = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
    inner |= {"head_dim", "vocab_size", "sliding_window", "rope_theta", "layer_types", "query_pre_attn_scalar"}
    config = {"model_type": "gemma3", "text_config": {key: text.metadata[key] for key in inner if key in text.metadata}}
    tensors = {f"language_model.{name}": tensor for name, tensor in text.tensors.items()}
    tensors["vision_tower.patch.weight"] = tensors["language_model.model.norm.weight"]
    model = read_model(replace(text, metadata=config, tensors=tensors))
    assert model.spec.layers == read_model(text).spec.layers
    assert model.spec.norm_eps == 1e-6


def test_qwen_windows_start_at_the_layer_that_the_config_names(hf):
    values = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
    assert [layer.sliding_window for layer in read_model(changed(hf("qwen2"), **values)).spec.layers] == [None, 20]
    values["use_sliding_window"] = False
    assert [layer.sliding_window for layer in read_model(changed(hf("qwen2"), **values)).spec.layers] == [None, None]


def test_a_gguf_gemma_may_list_its_local_layers(gguf):
    pattern = [True, False, True, True, False, True]
    spec = read_model(changed(gguf("gemma3"), gemma3__attention__sliding_window_pattern=pattern)).spec
    assert [layer.sliding_window is not None for layer in spec.layers] == pattern
    with pytest.raises(CheckpointError, match="sliding_window_pattern' must be a list of 6 times"):
        read_model(changed(gguf("gemma3"), gemma3__attention__sliding_window_pattern=pattern[1:]))
