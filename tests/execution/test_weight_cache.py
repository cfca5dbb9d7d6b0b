"""Packed weights on disk: mapped at later starts, bounded, shared by processes, and never trusted."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.core.errors import CheckpointError
from kvist.execution.native import _native, packed_file
from kvist.execution.native.huge_pages import HUGE_PAGE_BYTES, huge_room, read_to_huge_pages
from kvist.execution.native.load_weights import load_packed_weights
from kvist.execution.native.packed_file import load_packed_file, write_packed_file
from kvist.execution.native.packed_weights import QUANTIZED_FORMATS, Matrix, pack_matrix, packing_of
from kvist.execution.native.self_test import random_matrix
from kvist.execution.native.weight_cache import WeightCache, cache_key
from kvist.models.registry import read_model
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.mapped_files import mapped_files

KEY = "k" * 64
SIZES = {"a": 100, "b": 5000, "empty": 0}
# Checksums of a packed random matrix in each format, in layout version 1.
PACKED = {
    "Q4_0": 789298756,
    "Q4_1": 804450293,
    "Q4_K": 1353298573,
    "Q5_0": 3729307575,
    "Q5_1": 3238723570,
    "Q5_K": 4066830840,
    "Q6_K": 335328629,
    "Q8_0": 3889272270,
}


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return {name: generator.integers(0, 256, size, np.uint8) for name, size in SIZES.items()}


@pytest.fixture
def cache(tmp_path):
    return WeightCache(tmp_path, 1 << 20, min_bytes=0)


def packed_bytes(weights):
    """All of a model's packed matrices, by place."""
    found = {}
    for i, home in enumerate((weights.shared, *weights.layers)):
        for name, weight in home.items():
            for j, part in enumerate(weight if isinstance(weight, tuple) else (weight,)):
                found[i, name, j] = part.values if isinstance(part, Matrix) else part
    return found


@pytest.mark.parametrize(
    ("architecture", "weight_format"), [("llama", "q4_k_m"), ("mixtral", "q5_0"), ("llama", "f16")]
)
def test_a_second_start_maps_what_the_first_packed(tiny_model, tmp_path, architecture, weight_format):
    checkpoint = open_checkpoint(tiny_model(architecture, weight_format))
    model, seen = read_model(checkpoint), []
    first, second = (
        load_packed_weights(
            checkpoint, model, lambda *done: seen.append(done), cache=WeightCache(tmp_path, 1 << 30, min_bytes=0)
        )
        for _ in range(2)
    )
    assert seen.count(seen[-1]) == 1, "the second start packed again"
    ours, theirs = packed_bytes(first), packed_bytes(second)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[place], theirs[place]) for place in ours)
    assert not any(place.flags.writeable for place in theirs.values() if place.dtype == np.uint8)


def test_weights_that_serve_as_they_are_stay_in_the_models_file(tiny_model, tmp_path):
    checkpoint = open_checkpoint(tiny_model("qwen3", "hf"))
    weights = load_packed_weights(checkpoint, read_model(checkpoint), cache=WeightCache(tmp_path, 1 << 30, min_bytes=0))
    matrices = [part for part in packed_bytes(weights).values() if part.dtype == np.uint8]
    assert matrices
    (file,) = mapped_files(checkpoint.tensors.values())
    whole = np.frombuffer(file, np.uint8)
    assert all(np.shares_memory(whole, matrix) for matrix in matrices)
    assert list(tmp_path.iterdir()) == []


def test_the_key_follows_the_file_and_the_layout(tiny_model, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_model("llama", "q8_0").read_bytes())
    before = open_checkpoint(path)
    key = cache_key(before, 1)
    assert cache_key(open_checkpoint(path), 1) == key
    assert cache_key(before, 2) != key
    moved = path.rename(tmp_path / "moved.gguf")
    assert cache_key(open_checkpoint(moved), 1) == key
    os.utime(moved, ns=(1, 1))
    assert cache_key(open_checkpoint(moved), 1) != key
    assert cache_key(replace(before, file_stamps=((1, 1),)), 1) != key


@pytest.fixture(params=[0, 1 << 30], ids=["mapped", "copied"])
def max_copied_bytes(request):
    return request.param


def test_what_is_written_is_what_is_loaded(tmp_path, arrays, max_copied_bytes):
    write_packed_file(tmp_path / "f", KEY, arrays)
    mapped = load_packed_file(tmp_path / "f", KEY, SIZES, verify=True, max_copied_bytes=max_copied_bytes)
    assert all(np.array_equal(mapped[name], arrays[name]) for name in arrays)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path, arrays, monkeypatch):
    write_packed_file(tmp_path / "f", KEY, arrays)
    monkeypatch.setattr(packed_file, "read_to_huge_pages", lambda file, num_bytes: read_to_huge_pages(file, 300))
    with pytest.raises(CheckpointError, match="300 bytes"):
        load_packed_file(tmp_path / "f", KEY, SIZES, verify=False, max_copied_bytes=1 << 30)


def test_huge_rooms_begin_at_huge_pages_and_are_as_large_as_asked():
    for size in (1, 4096, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1):
        room = huge_room(size)
        assert len(room) == size
        assert room.__array_interface__["data"][0] % HUGE_PAGE_BYTES == 0
        assert not room.any()


@pytest.mark.parametrize(
    ("key", "sizes"), [("other", SIZES), (KEY, SIZES | {"c": 1}), (KEY, {"a": 100}), (KEY, SIZES | {"a": 101})]
)
def test_a_file_of_something_else_is_refused(tmp_path, arrays, key, sizes, max_copied_bytes):
    write_packed_file(tmp_path / "f", KEY, arrays)
    with pytest.raises(CheckpointError):
        load_packed_file(tmp_path / "f", key, sizes, verify=False, max_copied_bytes=max_copied_bytes)


def test_a_file_cut_or_lengthened_anywhere_is_refused(tmp_path, arrays, max_copied_bytes):
    path = tmp_path / "f"
    write_packed_file(path, KEY, arrays)
    whole = path.read_bytes()
    for size in [*range(200), *range(200, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            load_packed_file(path, KEY, SIZES, verify=False, max_copied_bytes=max_copied_bytes)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="were written"):
        load_packed_file(path, KEY, SIZES, verify=False, max_copied_bytes=max_copied_bytes)


def test_changed_bytes_never_do_worse_than_a_refusal_and_checksums_find_them_all(tmp_path, arrays, max_copied_bytes):
    path, generator = tmp_path / "f", random.Random(0)
    write_packed_file(path, KEY, arrays)
    whole = path.read_bytes()
    begin = len(whole) - 3 * 4096
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            content[generator.choice([generator.randrange(200), generator.randrange(len(whole))])] = (
                generator.randrange(256)
            )
        path.write_bytes(content)
        is_padding_alone = all(
            bytes(content[first:last]) == whole[first:last]
            for first, last in [(0, begin), (begin, begin + 100), (begin + 4096, begin + 4096 + 5000)]
        )
        try:
            mapped = load_packed_file(path, KEY, SIZES, verify=True, max_copied_bytes=max_copied_bytes)
        except CheckpointError:
            continue
        assert is_padding_alone or bytes(content[:200]) == whole[:200]
        assert all(np.array_equal(mapped[name], arrays[name]) for name in arrays)


def test_a_damaged_file_is_made_again_with_a_warning(cache, tmp_path, arrays, caplog):
    cache.store(KEY, arrays)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:5000])
    with caplog.at_level(logging.WARNING):
        assert cache.load(KEY, SIZES) is None
    assert "made again" in caplog.text
    cache.store(KEY, arrays)
    assert cache.load(KEY, SIZES).keys() == arrays.keys()


def test_only_checksums_find_a_changed_weight(tmp_path, arrays):
    cache = WeightCache(tmp_path, 1 << 20, min_bytes=0)
    cache.store(KEY, arrays)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-4096] ^= 1
    path.write_bytes(content)
    assert cache.load(KEY, SIZES) is not None
    assert WeightCache(tmp_path, 1 << 20, verify=True, min_bytes=0).load(KEY, SIZES) is None


def test_the_least_recently_used_goes_first_and_the_bound_holds(tmp_path):
    cache = WeightCache(tmp_path, 25_000, min_bytes=0)
    array = {"a": np.zeros(6_000, np.uint8)}
    for key in ("old", "new"):
        cache.store(key, array)
    os.utime(tmp_path / "new.packed", ns=(1, 1))
    assert cache.load("new", {"a": 6_000}) is not None  # used: now the latest
    os.utime(tmp_path / "old.packed", ns=(2, 2))
    cache.store("third", array)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.packed", "third.packed"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 25_000


def test_what_is_larger_than_the_bound_or_not_worth_it_is_not_kept(tmp_path, arrays):
    for cache in (WeightCache(tmp_path, 1000, min_bytes=0), WeightCache(tmp_path, 0), WeightCache(tmp_path, 1 << 20)):
        cache.store(KEY, arrays)
        assert cache.load(KEY, SIZES) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_costs_no_start(tmp_path, arrays):
    (tmp_path / "file").write_text("in the way")
    cache = WeightCache(tmp_path / "file" / "weights", 1 << 20, min_bytes=0)
    cache.store(KEY, arrays)
    assert cache.load(KEY, SIZES) is None


def test_writers_readers_and_evictions_at_once_see_whole_files_only(tmp_path, arrays):
    cache = WeightCache(tmp_path, 40_000, min_bytes=0)

    def use(number):
        key = f"{number % 4}" * 64
        cache.store(key, arrays)
        found = cache.load(key, SIZES)
        return found is None or all(np.array_equal(found[name], arrays[name]) for name in arrays)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(use, range(120)))
    assert all(path.suffix == ".packed" for path in tmp_path.iterdir())


def test_a_mapped_file_outlives_its_eviction(cache, tmp_path, arrays):
    cache.store(KEY, arrays)
    mapped = cache.load(KEY, SIZES)
    for path in tmp_path.iterdir():
        path.unlink()
    assert np.array_equal(mapped["b"], arrays["b"])


def test_packed_bytes_change_with_the_layout_version_only():
    """If this fails, raise kLayoutVersion in csrc/pack.h and put the new checksums here."""
    made = {name: zlib.crc32(pack_matrix(random_matrix(name, 40, 512, seed=5), None).values.data) for name in PACKED}
    assert (_native.layout_version, made) == (1, PACKED)


@pytest.mark.parametrize("num_outputs", [16, 40, 160])
@pytest.mark.parametrize("name", QUANTIZED_FORMATS)
def test_pieces_pack_the_same_bytes_as_the_whole(name, num_outputs):
    packing = packing_of(random_matrix(name, num_outputs, 512), None)
    packed = np.empty(packing.num_bytes, np.uint8)
    pieces = list(packing.pieces(packed, 1 if num_outputs == 160 else 30_000))
    for piece, part in pieces:
        piece.write(part)
    assert np.array_equal(packed, pack_matrix(packing.tensor, None).values)
    assert num_outputs != 160 or len(pieces) == 10


@pytest.mark.parametrize("name", QUANTIZED_FORMATS)
def test_packing_refuses_what_does_not_fit(name):
    formats = (*QUANTIZED_FORMATS, "F32")
    number = formats.index(name)
    tensor = random_matrix(name, 16, 256)
    packed = pack_matrix(tensor, None).values.copy()
    none = np.empty(0, np.int32)
    huge = 2**31 - 20
    for source, n, k, rows, target in [
        (tensor.data[:-1], 16, 256, none, packed),
        (tensor.data, 17, 256, none, packed),
        (tensor.data, 16, 512, none, packed),
        (tensor.data, 16, 255, none, packed),
        (tensor.data, 16, 0, none, packed),
        (tensor.data, -16, 256, none, packed),
        (tensor.data, huge, 2**31 - 256, none, packed),
        (tensor.data, 2**62, 2**62, none, packed),
        (tensor.data, 16, 256, none, packed[:-1]),
        (tensor.data, 16, 256, np.full(16, 16, np.int32), packed),
        (tensor.data, 16, 256, np.full(16, -1, np.int32), packed),
        (tensor.data, 16, 256, np.zeros(3, np.int32), packed),
    ]:
        with pytest.raises(ValueError, match=r"short|width|shape|row"):
            _native.pack(number, source, n, k, rows, target)
    for n, k in [(17, 256), (16, 512), (16, 255), (-1, 256), (huge, 256)]:
        with pytest.raises(ValueError, match=r"short|width|shape"):
            _native.weight(packed, number, n, k, np.empty(0, np.float32))
    for unknown in (-1, 11, 10**6):
        with pytest.raises(ValueError, match="no such format"):
            _native.packed_bytes(unknown, 16, 256)


def test_random_shapes_are_packed_or_refused():
    program = (
        "import random, numpy as np\n"
        "from kvist.execution.native import _native\n"
        "generator = random.Random(7)\n"
        "sizes = [0, 1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 512, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -1]\n"
        "source = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)\n"
        "for _ in range(20000):\n"
        "    n, k, kind = generator.choice(sizes), generator.choice(sizes), generator.randint(-1, 12)\n"
        "    given, room = source[: generator.randint(0, 1 << 16)], np.empty(generator.randint(0, 1 << 16), np.uint8)\n"
        "    try:\n"
        "        _native.pack(kind, given, n, k, np.empty(0, np.int32), room)\n"
        "    except (ValueError, TypeError):\n"
        "        pass\n"
        "print('survived')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ended.stdout == "survived\n", ended.stderr
