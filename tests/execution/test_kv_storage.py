"""KV bytes: rounding, layout of a block, copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.core.errors import ConfigError
from kvist.core.step_plan import BlockMove, BlockMoveKind
from kvist.execution.kv_dtype import KV_DTYPES, SMALLEST_SCALED, kv_dtype, scale_and_round
from kvist.execution.kv_storage import KVStorage
from kvist.models.registry import read_model
from kvist.weights.checkpoint import open_checkpoint


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def storage(tiny_model, request):
    spec = read_model(open_checkpoint(tiny_model("llama"))).spec
    return KVStorage(spec, num_blocks=6, block_size=16, dtype=KV_DTYPES[request.param])


def fill(storage, blocks, slots, seed=0):
    random = np.random.default_rng(seed)
    keys, values = (random.standard_normal((len(blocks), 2, 16), np.float32) for _ in range(2))
    storage.write(1, np.array(blocks), np.array(slots), keys, values)
    return tuple(as_stored(storage, part) for part in (keys, values))


def as_stored(storage, vectors):
    bytes_per_number = storage.data.nbytes // (6 * 2 * 2 * 2 * 16 * 16)
    if bytes_per_number == 4:
        return vectors
    if bytes_per_number == 2:
        return KV_DTYPES["bfloat16"].widen(KV_DTYPES["bfloat16"].round(vectors))
    numbers, scales = scale_and_round(vectors)
    return numbers * scales[..., None]


def test_what_is_written_is_read_in_table_order(storage):
    keys, values = fill(storage, [4] * 16 + [0] * 3, [*range(16), 0, 1, 2])
    got_keys, got_values = storage.read(1, np.array([4, 0]))
    np.testing.assert_array_equal(got_keys[:, :, :19], keys.transpose(1, 2, 0))
    np.testing.assert_array_equal(got_values[:, :19], values.transpose(1, 0, 2))


def test_a_copy_moves_its_first_slots_and_no_more(storage):
    fill(storage, [2] * 16, range(16), seed=1)
    fill(storage, [3] * 16, range(16), seed=2)
    before = [part.copy() for part in storage.read(1, np.array([3]))]
    storage.move([BlockMove(BlockMoveKind.COPY, 2, 3, 5)])
    (source_keys, source_values), (keys, values) = (storage.read(1, np.array([block])) for block in (2, 3))
    np.testing.assert_array_equal(keys[:, :, :5], source_keys[:, :, :5])
    np.testing.assert_array_equal(values[:, :5], source_values[:, :5])
    np.testing.assert_array_equal(keys[:, :, 5:], before[0][:, :, 5:])
    np.testing.assert_array_equal(values[:, 5:], before[1][:, 5:])


def test_the_pool_begins_a_page(storage):
    assert storage.data.ctypes.data % 4096 == 0


def test_a_block_is_one_contiguous_range(storage):
    fill(storage, range(6), [3] * 6)
    parts = np.split(storage.data.copy(), 6)
    storage.move([BlockMove(BlockMoveKind.COPY, 4, 1, 16)])
    moved = np.split(storage.data, 6)
    np.testing.assert_array_equal(moved[1], parts[4])
    for block in (0, 2, 3, 4, 5):
        np.testing.assert_array_equal(moved[block], parts[block])


@settings(max_examples=100)
@given(st.lists(st.floats(-1024, 1024, width=32), min_size=1, max_size=8))
def test_int8_numbers_are_within_half_a_step_and_the_largest_is_127(floats):
    vector = np.array([floats], np.float32)
    numbers, scale = scale_and_round(vector)
    top = np.abs(vector).max()
    assert np.abs(numbers).max() == (127 if top > SMALLEST_SCALED else 0)
    assert np.abs(numbers * scale[:, None] - vector).max() <= scale[0] * 0.5001 + SMALLEST_SCALED


def test_vectors_that_are_not_finite_are_nan_as_a_whole():
    for poison in (np.nan, np.inf, -np.inf):
        numbers, scales = scale_and_round(np.array([[1, poison], [1, 2]], np.float32))
        assert np.isnan(numbers[0] * scales[0]).all()
        assert np.isfinite(scales[1])


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_rounds_to_the_nearest_even(value):
    dtype, bits = KV_DTYPES["bfloat16"], int(np.float32(value).view(np.uint32)) >> 16
    neighbours = {b: float(dtype.widen(np.array([b], np.uint16))[0]) for b in (bits, bits + 1)}
    rounded = int(dtype.round(np.array([value], np.float32))[0])
    if np.isfinite(value) and np.isfinite(neighbours[bits + 1]):
        assert rounded == min(neighbours, key=lambda b: (abs(neighbours[b] - value), b % 2))


def test_nan_stays_nan_in_every_format():
    for dtype in (dtype for dtype in KV_DTYPES.values() if not dtype.is_scaled):
        assert np.isnan(dtype.widen(dtype.round(np.array([np.nan], np.float32)))).all()


def test_an_unknown_format_is_refused_with_what_there_is():
    assert kv_dtype("auto", "reference").name == "float32"
    assert kv_dtype("auto", "native").name == "float16"
    assert kv_dtype("auto", "native", isa="avx512", head_dim=64).name == "float16"
    assert kv_dtype("auto", "native", isa="amx", head_dim=80).name == "float16"
    assert kv_dtype("auto", "native", isa="amx", head_dim=64).name == "bfloat16"
    with pytest.raises(ConfigError, match="float16, bfloat16"):
        kv_dtype("fp8", "native")
