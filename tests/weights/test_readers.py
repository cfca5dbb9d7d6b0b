import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from kvist.core.errors import CheckpointError
from kvist.weights.checkpoint import open_checkpoint

EMBEDDING = np.arange(96, dtype=np.float32).reshape(3, 32)


def _write_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_float32("llama.eps", 0.5)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ä", "<|end|>"])
    writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])
    writer.add_tensor("token_embd.weight", EMBEDDING)
    writer.add_tensor("output_norm.weight", np.ones(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_written_by_another_library_reads_back(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "model.gguf")

    checkpoint = open_checkpoint(tmp_path / "model.gguf")

    assert checkpoint.kind == "gguf"
    assert checkpoint.metadata["general.architecture"] == "llama"
    assert checkpoint.metadata["llama.block_count"] == 1
    assert checkpoint.metadata["llama.eps"] == 0.5
    assert checkpoint.metadata["tokenizer.ggml.add_bos_token"] is True
    assert checkpoint.metadata["tokenizer.ggml.tokens"] == ["a", "ä", "<|end|>"]
    assert checkpoint.metadata["tokenizer.ggml.token_type"] == [1, 2, 3]
    assert checkpoint.tensor_names == ("token_embd.weight", "output_norm.weight")
    assert checkpoint.weight_bytes == 4 * (96 + 8)
    assert checkpoint.num_parameters == 96 + 8
    np.testing.assert_array_equal(checkpoint.tensor("token_embd.weight").dequantize(), EMBEDDING)


def test_a_gguf_file_can_be_read_without_the_arrays_of_its_tokenizer(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "model.gguf")
    whole = open_checkpoint(tmp_path / "model.gguf")

    checkpoint = open_checkpoint(tmp_path / "model.gguf", with_vocabulary=False)

    left_out = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type"}
    assert checkpoint.metadata == {key: value for key, value in whole.metadata.items() if key not in left_out}
    assert checkpoint.identity == whole.identity
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(checkpoint.tensor(name).dequantize(), tensor.dequantize())


def test_a_folder_with_one_gguf_file_opens_as_that_file(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "model.gguf")
    assert open_checkpoint(tmp_path).path == tmp_path / "model.gguf"


def test_a_missing_tensor_is_reported_with_the_nearest_names(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=r"no tensor 'output_nrm.weight'.*output_norm.weight"):
        open_checkpoint(tmp_path / "model.gguf").tensor("output_nrm.weight")


def _safetensors_bytes(tensors: dict[str, np.ndarray]) -> bytes:
    header, body = {}, b""
    for name, array in tensors.items():
        dtype = {"float32": "F32", "float16": "F16"}[array.dtype.name]
        data_offsets = [len(body), len(body) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": data_offsets}
        body += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def test_a_safetensors_folder_reads_back(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    half = np.array([1.5, -2], dtype=np.float16)
    (tmp_path / "model.safetensors").write_bytes(_safetensors_bytes({"a": EMBEDDING, "b": half}))

    checkpoint = open_checkpoint(tmp_path)

    assert checkpoint.kind == "hf"
    assert checkpoint.metadata == {"model_type": "llama"}
    np.testing.assert_array_equal(checkpoint.tensor("a").dequantize(), EMBEDDING)
    assert checkpoint.tensor("b").dequantize().tolist() == [1.5, -2]
    assert checkpoint.side_json("generation_config.json") is None


def test_a_sharded_safetensors_folder_reads_back(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "one.safetensors").write_bytes(_safetensors_bytes({"a": EMBEDDING}))
    (tmp_path / "two.safetensors").write_bytes(_safetensors_bytes({"b": EMBEDDING[:1]}))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert open_checkpoint(tmp_path).tensor("b").shape == (1, 32)


def test_an_index_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (tmp_path / "secret.safetensors").write_bytes(_safetensors_bytes({"a": EMBEDDING}))
    index = {"weight_map": {"a": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="not a file name"):
        open_checkpoint(folder)


def test_a_missing_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match=r"neither a config.json nor a .gguf"):
        open_checkpoint(tmp_path)
