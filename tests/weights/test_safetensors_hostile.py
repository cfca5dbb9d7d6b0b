"""A safetensors folder from a stranger: reading gives a model or a refusal, in little memory."""

import contextlib
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.quantization.formats import BF16, F32
from kvist.quantization.quantize import quantize
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.safetensors_reader import read_safetensors, read_safetensors_folder
from kvist.weights.safetensors_writer import write_safetensors_folder
from kvist.weights.tensor import StoredTensor

TENSORS = [StoredTensor("a.weight", (2, 3), F32), StoredTensor("b.weight", (4,), BF16)]


def _content(tensor: StoredTensor) -> list[bytes]:
    return [quantize(np.ones(tensor.shape, dtype=np.float32), tensor.format).tobytes()]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("safetensors")
    write_safetensors_folder(folder, TENSORS, _content)
    return (folder / "model.safetensors").read_bytes()


def _read(folder: Path, content: bytes) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    for tensor in read_safetensors(path).values():
        assert tensor.dequantize().shape == tensor.shape


def _read_or_refuse(folder: Path, content: bytes) -> None:
    tracemalloc.start()
    with contextlib.suppress(CheckpointError):
        _read(folder, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_file_cut_anywhere_is_refused(valid: bytes, tmp_path: Path) -> None:
    _read(tmp_path, valid)
    for size in range(len(valid)):
        with pytest.raises(CheckpointError):
            _read(tmp_path, valid[:size])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_never_do_worse_than_a_refusal(
    valid: bytes, tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(valid)
    for position, value in changes:
        content[position % len(content)] = value
    _read_or_refuse(tmp_path, bytes(content))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
entries = json_values | st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F8_E4M3", "", 3, None]),
        "shape": json_values | st.lists(st.integers(0, 2**40), max_size=3),
        "data_offsets": json_values | st.tuples(st.integers(0, 40), st.integers(0, 40)),
    }
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.text(max_size=5), entries, max_size=3))
def test_any_header_never_does_worse_than_a_refusal(tmp_path: Path, header: dict) -> None:
    _read_or_refuse(tmp_path, _file(json.dumps(header).encode()))


def _file(header: bytes, body: bytes = bytes(40)) -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def _entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), start: int = 0, end: int = 8) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


REFUSED = {
    "header longer than the file": ((2**62).to_bytes(8, "little") + b"{}", "header of 4611"),
    "no JSON": (_file(b"hello"), "not valid JSON"),
    "no object": (_file(b"[]"), "a JSON object is expected"),
    "deep nesting": (_file(b'{"a":' + b"[" * 100_000), "not valid JSON"),
    "key twice": (_file(b'{"a":{},"a":{}}'), "a key appears twice"),
    "huge number": (_file(b'{"a":{"shape":[' + b"9" * 9000 + b"]}}"), "not valid JSON"),
    "wrong size": (_file(json.dumps({"a": _entry(end=12)}).encode()), "'a'.*bytes 0 to 12, expected 0 to 8"),
    "hole": (_file(json.dumps({"a": _entry(start=4, end=12)}).encode()), "'a'.*bytes 4 to 12, expected 0 to 8"),
    "overlap": (_file(json.dumps({"a": _entry(), "b": _entry()}).encode()), "bytes 0 to 8, expected 8 to 16"),
    "beyond the end": (_file(json.dumps({"a": _entry(shape=(2**40,), end=2**42)}).encode()), "download complete"),
    "bytes of no tensor": (_file(json.dumps({"a": _entry()}).encode()), "32 bytes belong to no tensor"),
    "no elements": (_file(b'{"a":{"dtype":"F32","shape":[0,1099511627776],"data_offsets":[0,0]}}'), "empty dimension"),
    "true as a size": (_file(b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}'), "malformed"),
    "unsupported": (_file(json.dumps({"a": _entry("F8_E4M3")}).encode()), "'a' is in F8_E4M3; supported .*BF16"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_file_is_refused_by_what_is_wrong(tmp_path: Path, case: str) -> None:
    content, message = REFUSED[case]
    with pytest.raises(CheckpointError, match=message):
        _read(tmp_path, content)


def _write_sharded(folder: Path) -> dict[str, str]:
    write_safetensors_folder(folder, TENSORS, _content, max_shard_bytes=30)
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def test_a_sharded_checkpoint_reads_back(tmp_path: Path) -> None:
    weight_map = _write_sharded(tmp_path)
    assert set(weight_map.values()) == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    assert set(read_safetensors_folder(tmp_path)) == {"a.weight", "b.weight"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a.weight": "/etc/passwd"}, "not a file name"),
        ({"a.weight": "../model-00001-of-00002.safetensors"}, "not a file name"),
        ({"a.weight": 5}, "not a file name"),
        ({"a.weight": "x\0.safetensors"}, "not a file name"),
        ({"a.weight": ".."}, "not a file name|cannot read"),
        ({"a.weight": "absent.safetensors"}, "cannot read"),
        ({"a.weight": "model-00002-of-00002.safetensors"}, "'a.weight' is not in model-00002"),
        ({"c.weight": "model-00002-of-00002.safetensors"}, "'c.weight' is not in model-00002"),
    ],
)
def test_a_hostile_index_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    weight_map = _write_sharded(tmp_path) | change
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        read_safetensors_folder(tmp_path)


def test_a_tensor_that_the_index_does_not_list_is_refused(tmp_path: Path) -> None:
    write_safetensors_folder(tmp_path, [*TENSORS, StoredTensor("c.weight", (1,), F32)], _content, max_shard_bytes=30)
    weight_map = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    del weight_map["c.weight"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"'c.weight' of model-00002.* is not listed"):
        read_safetensors_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [("", "not valid JSON"), ("[1]", "JSON object"), ('{"quantization_config": {"bits": 4}}', "quantization_config")],
)
def test_a_config_that_cannot_be_used_is_refused(tmp_path: Path, config: str, message: str) -> None:
    write_safetensors_folder(tmp_path, TENSORS, _content)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_a_folder_with_other_weights_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="no safetensors weights"):
        open_checkpoint(tmp_path)


def test_an_unsupported_dtype_is_its_own_kind_of_error(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError):
        _read(tmp_path, REFUSED["unsupported"][0])
