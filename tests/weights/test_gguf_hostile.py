"""A GGUF file from a stranger: whatever is in it, reading gives a model or a refusal, in little memory."""

import contextlib
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvist.core.errors import CheckpointError, UnsupportedModelError
from kvist.quantization.formats import F32, Q4_0
from kvist.quantization.quantize import quantize
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.gguf_writer import write_gguf
from kvist.weights.tensor import StoredTensor

METADATA = {
    "general.architecture": "llama",
    "a.whole": 7,
    "a.large": 2**40,
    "a.real": 0.5,
    "a.flag": True,
    "a.words": ["one", "", "três"],
    "a.numbers": [1, 2, 3],
    "a.reals": [0.5, 1.5],
    "tokenizer.words": ["two", "três"],
    "tokenizer.numbers": [4, 5],
}
TENSORS = [StoredTensor("blk.0.w", (2, 64), Q4_0), StoredTensor("blk.0.norm", (8,), F32)]
HOSTILE_NUMBERS = [0, 1, 2, 9, 255, 2**16, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 1]


def _content(tensor: StoredTensor) -> list[bytes]:
    return [quantize(np.ones(tensor.shape, dtype=np.float32), tensor.format).tobytes()]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "valid.gguf"
    write_gguf(path, METADATA, TENSORS, _content)
    return path.read_bytes()


def _read(folder: Path, content: bytes) -> None:
    path = folder / "model.gguf"
    path.write_bytes(content)
    with np.errstate(all="ignore"):
        for with_vocabulary in (False, True):
            for tensor in open_checkpoint(path, with_vocabulary=with_vocabulary).tensors.values():
                assert tensor.dequantize().shape == tensor.shape


def _read_or_refuse(folder: Path, content: bytes) -> None:
    tracemalloc.start()
    with contextlib.suppress(CheckpointError):
        _read(folder, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_the_valid_file_is_valid(valid: bytes, tmp_path: Path) -> None:
    _read(tmp_path, valid)


def test_a_file_cut_anywhere_is_refused(valid: bytes, tmp_path: Path) -> None:
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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 2**20), number=st.sampled_from(HOSTILE_NUMBERS), code=st.sampled_from(["<I", "<Q"]))
def test_hostile_numbers_never_do_worse_than_a_refusal(
    valid: bytes, tmp_path: Path, position: int, number: int, code: str
) -> None:
    content = bytearray(valid)
    packed = struct.pack(code, number & (2 ** (8 * struct.calcsize(code)) - 1))
    start = position % (len(content) - len(packed))
    content[start : start + len(packed)] = packed
    _read_or_refuse(tmp_path, bytes(content))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400))
def test_random_bytes_after_a_good_start_are_refused(tmp_path: Path, content: bytes) -> None:
    _read_or_refuse(tmp_path, b"GGUF\x03\0\0\0" + content)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _file(key_values: list[bytes], tensors: list[bytes], version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(key_values))
    content = head + b"".join(key_values) + b"".join(tensors)
    return content + bytes(-len(content) % 32) + bytes(4096)


def _tensor(name: str = "w", dimensions: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return _text(name) + sizes + struct.pack("<IQ", kind, offset)


def _key_value(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


NESTED = struct.pack("<IQ", 9, 1) * 5000 + struct.pack("<IQB", 0, 1, 1)

REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "not a GGUF file": (lambda: b"PK\x03\x04" + bytes(64), "not a GGUF file"),
    "version 1": (lambda: _file([], [], version=1), "version 1 is not supported"),
    "big-endian": (lambda: b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "a million tensors": (lambda: b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0), "'tensors' cannot be"),
    "key twice": (lambda: _file([_key_value("k", 0, b"1")] * 2, []), "'k' appears twice"),
    "tensor twice": (lambda: _file([], [_tensor(), _tensor(offset=128)]), "'w' appears twice"),
    "overlap": (lambda: _file([], [_tensor("a"), _tensor("b", offset=64)]), "'b' overlaps"),
    "offset not aligned": (lambda: _file([], [_tensor(offset=4)]), "not a multiple of 32"),
    "offset beyond the end": (lambda: _file([], [_tensor(offset=2**63)]), "download complete"),
    "too large": (lambda: _file([], [_tensor(dimensions=(2**20,))]), "download complete"),
    "product overflows": (lambda: _file([], [_tensor(dimensions=(2**32, 2**32, 2**32))]), "download complete"),
    "no elements": (lambda: _file([], [_tensor(dimensions=(4, 0))]), "empty dimension"),
    "five dimensions": (lambda: _file([], [_tensor(dimensions=(1,) * 5)]), "5 dimensions"),
    "half a block": (lambda: _file([], [_tensor(dimensions=(48,), kind=8)]), "whole Q8_0 blocks"),
    "unknown format": (lambda: _file([], [_tensor(kind=77)]), "tensor 'w': weights in unknown type 77"),
    "unsupported format": (lambda: _file([], [_tensor(kind=16, dimensions=(256,))]), "IQ2_XXS"),
    "nested arrays": (lambda: _file([_key_value("k", 9, NESTED)], []), "'k' is an array of arrays"),
    "long string": (lambda: _file([_key_value("k", 8, struct.pack("<Q", 2**64 - 1))], []), "string of 1844"),
    "long array": (lambda: _file([_key_value("k", 9, struct.pack("<IQ", 0, 2**62))], []), "'k' cannot be"),
    "long strings": (lambda: _file([_key_value("k", 9, struct.pack("<IQQ", 8, 1, 2**63))], []), "ends inside 'k'"),
    "unknown type": (lambda: _file([_key_value("k", 13, b"")], []), "unknown type 13"),
    "not text": (lambda: _file([_key_value("k", 8, struct.pack("<Q", 2) + b"\xff\xfe")], []), "not valid UTF-8"),
    "alignment 0": (lambda: _file([_key_value("general.alignment", 4, struct.pack("<I", 0))], []), "power of two"),
    "alignment 48": (lambda: _file([_key_value("general.alignment", 4, struct.pack("<I", 48))], []), "power of two"),
    "alignment text": (lambda: _file([_key_value("general.alignment", 8, _text("32"))], []), "power of two"),
    "part of a split": (lambda: _file([_key_value("split.count", 2, b"\x02\0")], []), "part of a split model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_file_is_refused_by_what_is_wrong(tmp_path: Path, case: str) -> None:
    make, message = REFUSED[case]
    (tmp_path / "model.gguf").write_bytes(make())
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "model.gguf")


def test_an_empty_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is empty"):
        open_checkpoint(tmp_path / "model.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")


def _split(folder: Path, count: int, promised: int) -> list[Path]:
    paths = [folder / f"m-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        keys = {"split.no": number, "split.count": count, "split.tensors.count": promised}
        tensor = StoredTensor(f"blk.{number}.w", (8,), F32)
        write_gguf(path, {"general.architecture": "llama"} | keys, [tensor], _content)
    return paths


def test_a_split_model_opens_from_any_of_its_parts(tmp_path: Path) -> None:
    for path in [*_split(tmp_path, 3, 3), tmp_path]:
        assert open_checkpoint(path).tensor_names == ("blk.0.w", "blk.1.w", "blk.2.w")


def test_a_split_model_with_a_part_missing_names_it(tmp_path: Path) -> None:
    first, second, _ = _split(tmp_path, 3, 3)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 parts are missing beside it: m-00002-of-00003.gguf"):
        open_checkpoint(first)


def test_a_split_model_with_too_few_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="hold 2 tensors, 5 are promised"):
        open_checkpoint(_split(tmp_path, 2, 5)[0])


def test_an_unsupported_format_is_its_own_kind_of_error(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(REFUSED["unsupported format"][0]())
    with pytest.raises(UnsupportedModelError):
        open_checkpoint(tmp_path / "model.gguf")
