"""KV bytes: rounding, layout of a block, copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.core.errors import ConfigError
from kvist.core.step_plan import BlockMove, BlockMoveKind
from kvist.execution.kv_dtype import KV_DTYPES, kv_dtype
from kvist.execution.kv_storage import KVStorage
from kvist.models.registry import read_model
from kvist.weights.checkpoint import open_checkpoint


@pytest.fixture
def storage(tiny_model):
    spec = read_model(open_checkpoint(tiny_model("llama"))).spec
    return KVStorage(spec, num_blocks=6, block_size=16, dtype=KV_DTYPES["float32"])


def fill(storage, blocks, slots, seed=0):
    random = np.random.default_rng(seed)
    keys, values = (random.standard_normal((len(blocks), 2, 16), np.float32) for _ in range(2))
    storage.write(1, np.array(blocks), np.array(slots), keys, values)
    return keys, values


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


def test_a_block_is_one_contiguous_range(storage):
    block = storage._keys.base
    assert block.flags.c_contiguous
    assert block.shape == (6, 2, 2, 2 * 16 * 16)


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_rounds_to_the_nearest_even(value):
    dtype, bits = KV_DTYPES["bfloat16"], int(np.float32(value).view(np.uint32)) >> 16
    neighbours = {b: float(dtype.widen(np.array([b], np.uint16))[0]) for b in (bits, bits + 1)}
    rounded = int(dtype.round(np.array([value], np.float32))[0])
    if np.isfinite(value) and np.isfinite(neighbours[bits + 1]):
        assert rounded == min(neighbours, key=lambda b: (abs(neighbours[b] - value), b % 2))


def test_nan_stays_nan_in_every_format():
    for dtype in KV_DTYPES.values():
        assert np.isnan(dtype.widen(dtype.round(np.array([np.nan], np.float32)))).all()


def test_an_unknown_format_is_refused_with_what_there_is():
    assert kv_dtype("auto", "reference").name == "float32"
    assert kv_dtype("auto", "native").name == "float16"
    with pytest.raises(ConfigError, match="float16, bfloat16"):
        kv_dtype("fp8", "native")
