from dataclasses import replace

import gguf
import numpy as np
import pytest

from kvist.core.errors import ConfigError
from kvist.quantization.formats import F32
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.model_shapes import SHAPES
from kvist.weights.random_model import GGUF_FORMATS, make_random_model
from kvist.weights.random_weights import RandomMatrix, RandomWeights

TINY = [name.removeprefix("tiny-") for name in SHAPES if name.startswith("tiny-")]


@pytest.mark.parametrize("architecture", TINY)
def test_an_independent_reader_reads_the_same_gguf_file(tiny_model, architecture: str) -> None:
    path = tiny_model(architecture, "q4_k_m")

    checkpoint = open_checkpoint(path)

    oracle = gguf.GGUFReader(path)
    assert [tensor.name for tensor in oracle.tensors] == list(checkpoint.tensor_names)
    for tensor in oracle.tensors:
        ours = checkpoint.tensor(tensor.name)
        assert ours.shape == tuple(int(size) for size in reversed(tensor.shape))
        values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(ours.shape)
        np.testing.assert_allclose(ours.dequantize(), values, rtol=1e-6, atol=1e-6)
    for key, value in checkpoint.metadata.items():
        assert oracle.fields[key].contents() == value


@pytest.mark.parametrize("architecture", TINY)
def test_tensor_names_are_those_of_the_architecture(tiny_model, architecture: str) -> None:
    checkpoint = open_checkpoint(tiny_model(architecture, "f32"))
    arch = next(
        key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == checkpoint.metadata["general.architecture"]
    )
    known = {gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[arch]}
    for name in checkpoint.tensor_names:
        pattern = ".".join("{bid}" if part.isdigit() else part for part in name.split("."))
        assert pattern.rsplit(".", 1)[0] in known


def _interleaved(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """As llama GGUF files have it: row 2i of a head is row i, row 2i + 1 is row i + head_dim / 2."""
    heads = weight.reshape(-1, head_dim, weight.shape[-1])
    halves = heads[:, : head_dim // 2], heads[:, head_dim // 2 :]
    return np.stack(halves, axis=2).reshape(weight.shape)


@pytest.mark.parametrize("architecture", TINY)
def test_both_kinds_of_file_hold_the_same_model(tiny_model, architecture: str) -> None:
    in_gguf, in_hf = open_checkpoint(tiny_model(architecture, "bf16")), open_checkpoint(tiny_model(architecture, "hf"))
    shape = SHAPES[f"tiny-{architecture}"]
    layer, hf_layer = "blk.1.", "model.layers.1."

    q = in_hf.tensor(hf_layer + "self_attn.q_proj.weight").dequantize()
    expected_q = _interleaved(q, shape.head_dim) if shape.is_rope_interleaved_in_gguf else q
    norm = in_hf.tensor(hf_layer + "input_layernorm.weight").dequantize() + shape.is_gemma
    if shape.num_experts is None:
        down = in_hf.tensor(hf_layer + "mlp.down_proj.weight").dequantize()
        down_in_gguf = in_gguf.tensor(layer + "ffn_down.weight").dequantize()
    else:
        down = in_hf.tensor(hf_layer + "block_sparse_moe.experts.3.w2.weight").dequantize()
        down_in_gguf = in_gguf.tensor(layer + "ffn_down_exps.weight").dequantize()[3]

    np.testing.assert_array_equal(in_gguf.tensor(layer + "attn_q.weight").dequantize(), expected_q)
    np.testing.assert_array_equal(in_gguf.tensor(layer + "attn_norm.weight").dequantize(), norm)
    np.testing.assert_array_equal(down_in_gguf, down)
    if shape.has_qkv_bias:
        bias = in_hf.tensor(hf_layer + "self_attn.k_proj.bias").dequantize()
        np.testing.assert_array_equal(in_gguf.tensor(layer + "attn_k.bias").dequantize(), bias)


def test_the_same_seed_gives_the_same_file_and_another_seed_another(tmp_path) -> None:
    paths = [tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf")]
    for path, seed in zip(paths, (7, 7, 8), strict=True):
        make_random_model("tiny-llama", "q8_0", path, seed=seed)
    first, second, third = (path.read_bytes() for path in paths)
    assert first == second
    assert first != third


@pytest.mark.parametrize("weight_format", GGUF_FORMATS)
def test_every_format_can_be_written_and_read(tiny_model, weight_format: str) -> None:
    checkpoint = open_checkpoint(tiny_model("llama", weight_format))
    reference = open_checkpoint(tiny_model("llama", "f32"))
    for name in reference.tensor_names:
        exact, stored = reference.tensor(name).dequantize(), checkpoint.tensor(name).dequantize()
        assert np.abs(exact - stored).max() <= 0.16 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("like", "weight_format", "embedding_name", "std"),
    [("smollm2-135m", "hf", "model.embed_tokens.weight", 3 / 24), ("mixtral-tiny", "q6_k", "token_embd.weight", 0.5)],
)
def test_a_large_matrix_has_the_right_scale_and_progress_is_told(
    tmp_path, like: str, weight_format: str, embedding_name: str, std: float
) -> None:
    progress: list[tuple[int, int]] = []
    path = tmp_path / ("model" if weight_format == "hf" else "model.gguf")
    make_random_model(like, weight_format, path, layers=1, progress=lambda *done: progress.append(done))

    checkpoint = open_checkpoint(path)

    assert np.isclose(checkpoint.tensor(embedding_name).dequantize()[:2000].std(), std, rtol=0.02)
    assert len(progress) > len(checkpoint.tensor_names)
    assert progress[-1] == (checkpoint.weight_bytes, checkpoint.weight_bytes)


def test_a_large_matrix_is_interleaved_like_a_small_one() -> None:
    weights = RandomWeights(seed=1)
    plain = RandomMatrix(key="q", rows=12_240, columns=1024, std=1.0)  # 1.5 chunks
    interleaved = replace(plain, interleaved_head_dim=80)

    values = np.frombuffer(b"".join(weights.encode(plain, F32)), dtype=np.float32).reshape(12_240, 1024)
    chunks = list(weights.encode(interleaved, F32))

    assert len(chunks) == 2
    np.testing.assert_array_equal(
        np.frombuffer(b"".join(chunks), dtype=np.float32).reshape(values.shape), _interleaved(values, 80)
    )


def test_a_k_quant_gives_way_where_rows_do_not_fill_its_blocks(tmp_path) -> None:
    make_random_model("smollm2-135m", "q4_k_m", tmp_path / "model.gguf", layers=1)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert checkpoint.tensor("blk.0.attn_q.weight").format.name == "Q5_0"
    assert checkpoint.tensor("token_embd.weight").format.name == "Q8_0"


def test_misspelt_names_are_answered_with_the_nearest(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"there are .*\. Did you mean qwen3-0.6b\?"):
        make_random_model("qwen3-06b", "f32", tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match=r"Did you mean q4_k_m\?"):
        make_random_model("tiny-llama", "q4km", tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match="at least 1"):
        make_random_model("tiny-llama", "f32", tmp_path / "model.gguf", layers=0)
