"""Native attention: the reference's numbers; the same bits on all instruction sets, in any company, shared or not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.execution.kv_dtype import KV_DTYPES
from kvist.execution.kv_storage import KVStorage
from kvist.execution.native import _native
from kvist.execution.native.packed_weights import KV_TYPES
from kvist.execution.reference.attention import attend

BLOCK_SIZE = 16
NUM_BLOCKS = 400


@dataclass(frozen=True)
class Heads:
    num_q: int
    num_kv: int
    head_dim: int


SMALL = Heads(6, 2, 32)


class Layer:
    """One attention layer over a pool of random K and V, with rotation by nothing."""

    def __init__(
        self,
        heads=SMALL,
        *,
        dtype="float16",
        isa="",
        num_threads=1,
        window=0,
        softcap=0.0,
        integer=False,
        in_place=False,
    ):
        self.heads, self.window, self.softcap = heads, window, softcap
        self.dtype = KV_DTYPES[dtype]
        self.scale = heads.head_dim**-0.5
        spec = SimpleNamespace(num_layers=1, num_kv_heads=heads.num_kv, head_dim=heads.head_dim)
        self.storage = KVStorage(spec, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=self.dtype)
        random = np.random.default_rng(1)
        shape = (NUM_BLOCKS * BLOCK_SIZE, heads.num_kv, heads.head_dim)
        everywhere = np.divmod(np.arange(NUM_BLOCKS * BLOCK_SIZE), BLOCK_SIZE)
        self.storage.write(0, *everywhere, *(random.standard_normal(shape, np.float32) for _ in range(2)))
        self.plan = _native.Plan(isa, _native.ThreadPool(num_threads), 512, 64)
        width = (heads.num_q + 2 * heads.num_kv) * heads.head_dim
        self.qkv = self.plan.buffer(width)
        self.out = self.qkv if in_place else self.plan.buffer(heads.num_q * heads.head_dim)
        table = self.plan.rope_angles([0.0] * (heads.head_dim // 2))
        half = heads.num_kv * BLOCK_SIZE * self.dtype.vector_bytes(heads.head_dim)
        k_column = heads.num_q * heads.head_dim
        self.plan.attention(
            self.qkv, 0, k_column, k_column + heads.num_kv * heads.head_dim, self.out, -1, 2 * half, 0, half,
            KV_TYPES[dtype], BLOCK_SIZE, heads.num_q, heads.num_kv, heads.head_dim, window, self.scale, softcap,
            table, integer,
        )  # fmt: skip

    def activations(self, row):
        """q, k and v of a row's tokens, the same in any company: a function of its seed and positions."""
        start, num_tokens, _, seed = row
        width = (self.heads.num_q + 2 * self.heads.num_kv) * self.heads.head_dim
        per_position = [np.random.default_rng([seed, start + i]) for i in range(num_tokens)]
        return np.array([random.standard_normal(width, np.float32) for random in per_position]).reshape(-1, width)

    def run(self, *rows):
        """rows: (start, number of tokens, block table, seed). Returns the attended tokens of each."""
        first_rows = np.cumsum([0, *(row[1] for row in rows)])
        x = np.concatenate([self.activations(row) for row in rows])
        self.plan.view(self.qkv)[: len(x)] = x
        offsets = np.cumsum([0, *(len(row[2]) for row in rows)])
        places = zip(first_rows, offsets, strict=True)
        layout = np.array([(*row[:2], *place) for row, place in zip(rows, places, strict=False)], np.int32)
        tables = np.concatenate([row[2] for row in rows]).astype(np.int32)
        self.plan.replay(layout, tables, np.zeros(len(x), np.int32), self.storage.data, timed=False)
        result = self.plan.view(self.out)[: len(x), : self.heads.num_q * self.heads.head_dim].copy()
        return [result[a:b] for a, b in pairwise(first_rows)]

    def wanted(self, row):
        """The reference's attention over what lies in the pool after `run`."""
        start, num_tokens, table, _ = row
        keys, values = self.storage.read(0, np.array(table))
        query = self.activations(row)[:, : self.heads.num_q * self.heads.head_dim]
        return attend(
            query.reshape(num_tokens, self.heads.num_q, -1),
            keys[:, :, : start + num_tokens],
            values[:, : start + num_tokens],
            first_query=start,
            first_key=0,
            window=self.window or None,
            scale=self.scale,
            softcap=self.softcap or None,
        )


def table(first, num_tokens):
    return list(range(first, first - (-num_tokens // BLOCK_SIZE)))


def row(start, num_tokens, first_block, seed=0):
    return start, num_tokens, table(first_block, start + num_tokens), seed


SHAPES = [Heads(9, 3, 64), Heads(4, 4, 64), Heads(8, 1, 128), Heads(4, 1, 256), Heads(5, 1, 80), Heads(2, 2, 16)]
MATHS = [*({"dtype": name} for name in KV_DTYPES), {"dtype": "int8", "integer": True}]
FEW_MATHS = [MATHS[1], {"dtype": "bfloat16"}, {"dtype": "bfloat16", "isa": "amx_plain"}, MATHS[-2], MATHS[-1]]
FEW_MATHS += [{"dtype": "int8", "isa": "amx_plain"}]
ROUNDED = ("bfloat16", "int8")  # K and V whose queries and weights the matrix unit wants in bfloat16
ROWS = [(0, 1), (0, 37), (5, 1), (70, 3), (511, 2), (700, 70), (1030, 1)]


@pytest.mark.parametrize("window", [0, 20, 600])
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_all_shapes_give_the_numbers_of_the_reference(heads, dtype, window):
    layer = Layer(heads, dtype=dtype, window=window)
    error = 2e-2 if dtype in ROUNDED else 2e-5
    for start, num_tokens in ROWS:
        one = row(start, num_tokens, 7)
        np.testing.assert_allclose(layer.run(one)[0], layer.wanted(one), atol=error)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("math", FEW_MATHS, ids=str)
def test_what_is_attended_may_lie_where_its_queries_were(math, num_threads):
    rows = [row(0, 37, 7), row(700, 70, 80), row(1030, 1, 160), row(1030, 3, 160)]
    layers = [Layer(num_threads=num_threads, in_place=in_place, **math) for in_place in (False, True)]
    for apart, in_place in zip(*(layer.run(*rows) for layer in layers), strict=True):
        np.testing.assert_array_equal(apart, in_place)


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("isa", ["portable", "amx_plain"])
@pytest.mark.parametrize("heads", [Heads(3, 1, 64), Heads(5, 1, 80), Heads(2, 1, 96)], ids=str)
def test_products_of_bfloat16_round_queries_and_weights_alone(heads, isa, dtype):
    """The matrix unit takes heads of whole products; the others are computed in float32."""
    layer = Layer(heads, dtype=dtype, isa=isa)
    is_rounded = isa == "amx_plain" and heads.head_dim % 32 == 0
    for start, num_tokens in [(0, 1), (5, 20), (70, 3), (600, 40)]:
        one = row(start, num_tokens, 7)
        error = np.abs(layer.run(one)[0] - layer.wanted(one))
        assert error.max() < (2e-2 if is_rounded else 2e-5)
        assert error.mean() < (2e-3 if is_rounded else 2e-6)


@pytest.mark.parametrize("window", [0, 20, 600])
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_integer_products_add_next_to_nothing_to_what_the_cache_lost(heads, window):
    """Queries and weights have 15 bits: an error of one in some ten thousand, of numbers of about one."""
    layer = Layer(heads, dtype="int8", integer=True, window=window)
    for start, num_tokens in ROWS:
        one = row(start, num_tokens, 7)
        np.testing.assert_allclose(layer.run(one)[0], layer.wanted(one), atol=1e-3)


def test_integer_products_need_int8_keys_and_values():
    with pytest.raises(ValueError, match="int8"):
        Layer(dtype="float16", integer=True)


def test_a_value_that_is_not_finite_shows_in_whoever_reads_it():
    for options in (MATHS[0], *FEW_MATHS):
        layer = Layer(**options)
        for part in (0, 1):
            poisoned = [np.ones((1, 2, 32), np.float32) for _ in range(2)]
            poisoned[part][0, 1, 5] = np.inf
            layer.storage.write(0, np.array([3]), np.array([9]), *poisoned)
            before, after = layer.run(row(56, 1, 0), row(58, 1, 0))
            assert np.isfinite(before).all()
            assert not np.isfinite(after).all()


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2e-5), *((name, 2e-2) for name in ROUNDED)])
def test_soft_capped_scores_give_the_numbers_of_the_reference(dtype, error):
    layer, one = Layer(dtype=dtype, softcap=1.5), row(600, 9, 0)
    np.testing.assert_allclose(layer.run(one)[0], layer.wanted(one), atol=error)


def test_scores_that_keep_growing_give_the_numbers_of_the_reference():
    """What weights are relative to must rise many times, by less than the matrix unit's slack and by more."""
    for dtype, error in (("float16", 2e-3), ("bfloat16", 4e-2), ("int8", 4e-2)):
        layer, one = Layer(dtype=dtype), row(640, 3, 0)
        positions = np.arange(650)
        for steepness in (0.1, 0.6):
            keys, values = (np.random.default_rng(4).standard_normal((650, 2, 32), np.float32) for _ in range(2))
            keys *= (1 + steepness * positions // 64)[:, None, None].astype(np.float32)
            layer.storage.write(0, *np.divmod(positions, BLOCK_SIZE), keys, values)
            np.testing.assert_allclose(layer.run(one)[0], layer.wanted(one), atol=error)


@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize("math", MATHS, ids=str)
@pytest.mark.parametrize("heads", [SMALL, Heads(8, 1, 80), Heads(2, 1, 96), Heads(3, 3, 128)], ids=str)
@pytest.mark.parametrize("isa", [isa for isa in _native.isas() if isa != "portable"])
def test_all_instruction_sets_give_the_same_bits(isa, heads, math, window):
    rows = [row(0, 40, 0, 1), row(1100, 1, 20, 2), row(63, 2, 100, 3), row(1100, 1, 120, 4)]
    results = [Layer(heads, **math, window=window, isa=name).run(*rows) for name in (isa, _native.plain_twin(isa))]
    for ours, plain in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("math", FEW_MATHS, ids=str)
def test_chunks_and_threads_change_no_bit(num_threads, math):
    whole = Layer(**math).run(row(500, 200, 0))[0]
    layer = Layer(**math, num_threads=num_threads)
    parts = [layer.run(row(500 + begin, min(33, 200 - begin), 0))[0] for begin in range(0, 200, 33)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def sharing(num_shared, own, num_tokens=1):
    """Rows whose contexts begin with the same blocks: `own` is how many tokens each has of its own."""
    shared, rows, next_block = table(0, num_shared), [], 150
    for i, num_own in enumerate(own):
        mine = table(next_block, num_own + num_tokens)
        next_block += len(mine)
        rows.append((num_shared + num_own, num_tokens, [*shared, *mine], i))
    return rows


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("num_shared", [64, 80, 512, 704, 1088])
@pytest.mark.parametrize("math", FEW_MATHS, ids=str)
def test_a_prefix_read_once_for_all_changes_no_bit(math, num_shared, num_tokens, num_threads):
    rows = sharing(num_shared, [0, 1, 40, 0, 600, 17, 16], num_tokens)
    alone = [Layer(**math).run(each)[0] for each in rows]
    together = Layer(**math, num_threads=num_threads)
    assert_same(together.run(*rows), alone)
    # With company that shares nothing, a longer prefix within the group, and a prompt between them.
    nested = sharing(192, [0, 5, 5], num_tokens)
    inner = [
        (start, n, [*blocks[:12], *range(300 + 2 * i, 302 + 2 * i)], 20 + i)
        for i, (start, n, blocks, _) in enumerate(nested)
    ]
    others = [row(130, 1, 320, 30), row(0, 60, 340, 31)]
    mixed = [rows[0], others[1], *inner, rows[3], others[0], rows[2]]
    assert_same(together.run(*mixed), [Layer(**math).run(each)[0] for each in mixed])


def assert_same(ours, wanted):
    for got, alone in zip(ours, wanted, strict=True):
        np.testing.assert_array_equal(got, alone)


def test_all_rows_of_a_large_batch_may_share():
    rows = sharing(576, [i % 3 for i in range(60)])
    assert_same(Layer(num_threads=2).run(*rows), [Layer().run(each)[0] for each in rows])


def test_rows_whose_blocks_are_not_there_are_refused():
    layer = Layer()
    for start, num_tokens, blocks in [(40, 1, [0, 1]), (0, 17, [0]), (0, 1, [NUM_BLOCKS]), (0, 1, [-1]), (-1, 2, [0])]:
        x = np.zeros((num_tokens, 320), np.float32)
        layer.activations = lambda _, x=x: x
        with pytest.raises(ValueError, match=r"block|context"):
            layer.run((start, num_tokens, blocks, 0))
