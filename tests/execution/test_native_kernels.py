"""Every kernel gives the same bits for every instruction set, number of rows and number of threads."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tests.fakes.int8_activations import quantized

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.core.errors import ConfigError
from kvist.execution.native import _native, self_test
from kvist.execution.native.packed_weights import QUANTIZED_FORMATS, Matrix, pack_matrix
from kvist.execution.native.self_test import probe, random_matrix, trusted_isa

NUM_TOKENS = (0, 1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 33, 47, 64, 65, 130)


@pytest.fixture(scope="module")
def all_rows():
    return probe(trusted_isa(), max(NUM_TOKENS))


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("isa", _native.isas())
def test_all_instruction_sets_give_the_same_bits(isa, num_tokens):
    plain = probe(_native.plain_twin(isa), num_tokens)
    for num_threads in (1, 2):
        ours = probe(isa, num_tokens, num_threads=num_threads)
        for name, wanted in plain.items():
            assert np.array_equal(ours[name], wanted), name


@pytest.mark.parametrize("num_threads", [3, 7])
def test_more_threads_than_cores_give_the_same_bits(num_threads, all_rows):
    many = probe(trusted_isa(), max(NUM_TOKENS), num_threads=num_threads)
    for name, wanted in all_rows.items():
        assert np.array_equal(many[name], wanted), name


@pytest.mark.parametrize("num_rows", [257, 300])
def test_runs_of_rows_give_the_same_bits(num_rows):
    few, many = probe(trusted_isa(), 16), probe(trusted_isa(), num_rows, num_threads=2)
    for name in (*QUANTIZED_FORMATS, "F16", "BF16", "norm", "gated_linear"):
        assert np.array_equal(many[name][:16], few[name]), name


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
def test_a_linear_row_depends_on_no_other_row(num_tokens, all_rows):
    """The probe's activations are drawn row by row, so fewer tokens are the first rows of more."""
    few = probe(trusted_isa(), num_tokens)
    for name in (*QUANTIZED_FORMATS, "F32", "F16", "BF16", "norm", "gated_linear"):
        assert np.array_equal(few[name], all_rows[name][:num_tokens]), name


def linear(matrix: Matrix, x, isa=""):
    """x times the matrix, and how activations were rounded for it."""
    plan = _native.Plan(isa, _native.ThreadPool(1), len(x), 1)
    source, rows, out = plan.buffer(x.shape[1]), plan.quantized(x.shape[1]), plan.buffer(matrix.padded_outputs)
    plan.quantize(source, 0, rows)
    plan.linear([matrix.native()], [0], rows, out, accumulate=False)
    plan.view(source)[:] = x
    empty = np.zeros((0, 4), np.int32), np.zeros(0, np.int32)
    plan.replay(*empty, np.zeros(len(x), np.int32), np.zeros(1, np.uint8), timed=False)
    return plan.view(out)[:, : matrix.num_outputs], plan.activation_dtype


@pytest.mark.parametrize(("num_outputs", "width"), [(1, 256), (16, 512), (17, 256), (33, 768), (40, 2304)])
@pytest.mark.parametrize("name", QUANTIZED_FORMATS)
@pytest.mark.parametrize("isa", ["portable", "amx_plain", *_native.isas()[:1]])
def test_a_quantized_linear_is_the_product_of_what_both_sides_stand_for(isa, name, num_outputs, width):
    tensor = random_matrix(name, num_outputs, width, seed=3)
    x = np.random.default_rng(4).standard_normal((5, width), np.float32)
    got, dtype = linear(pack_matrix(tensor, None), x, isa)
    weights = tensor.dequantize().astype(np.float64)
    if dtype == "int8":
        wanted = quantized(x).astype(np.float64) @ weights.T
        np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max())
    else:
        wanted = x.astype(np.float64) @ weights.T
        # Of a product of two factors one is within half a unit in the eighth bit, the other within 0.7.
        assert (np.abs(got - wanted) <= 2**-7 * 1.25 * (np.abs(x) @ np.abs(weights).T)).all()


@pytest.mark.parametrize(("num_outputs", "width"), [(1, 32), (16, 512), (17, 96), (40, 2304)])
@pytest.mark.parametrize(("name", "unit"), [("F16", 2**-8), ("BF16", 2**-9)])
@pytest.mark.parametrize("isa", [isa for isa in ("amx_plain", *_native.isas()) if isa.startswith("amx")])
def test_dense_weights_on_the_matrix_unit_are_those_stored_or_the_nearest(isa, name, unit, num_outputs, width):
    tensor = random_matrix(name, num_outputs, width, seed=3)
    x = np.random.default_rng(4).standard_normal((35, width), np.float32)
    got, _ = linear(pack_matrix(tensor, None), x, isa)
    weights = tensor.dequantize().astype(np.float64)
    # Activations are within half a unit in the eighth bit, float16 weights too.
    assert (np.abs(got - x.astype(np.float64) @ weights.T) <= unit * 1.01 * (np.abs(x) @ np.abs(weights).T)).all()


@pytest.mark.parametrize("isa", ["amx_plain", *_native.isas()])
def test_only_the_matrix_unit_takes_dense_weights_and_only_whole_groups_of_two_bytes(isa):
    plan = _native.Plan(isa, _native.ThreadPool(1), 1, 1)
    widths = {(name, width) for name in ("F32", "F16", "BF16") for width in (48, 64)}
    taken = {
        each for each in widths if plan.takes_quantized(pack_matrix(random_matrix(each[0], 16, each[1]), None).native())
    }
    assert taken == ({("F16", 64), ("BF16", 64)} if isa.startswith("amx") else set())
    assert plan.takes_quantized(pack_matrix(random_matrix("Q8_0", 16, 64), None).native())


@pytest.mark.parametrize("name", QUANTIZED_FORMATS)
def test_widened_weights_are_not_biased(name):
    """Activations that bfloat16 holds, so that only weights are rounded: errors must cancel, not add up."""
    tensor = random_matrix(name, 64, 4096, seed=5)
    weights = tensor.dequantize().astype(np.float64)
    x = np.sign(weights[:1]).astype(np.float32)
    got, _ = linear(pack_matrix(tensor, None), x, "amx_plain")
    assert abs(got[0, 0] / (x[0] @ weights[0]) - 1) < 5e-4


@pytest.mark.parametrize("poison", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("isa", ["amx_plain", *_native.isas()])
def test_a_number_that_is_not_finite_makes_its_own_row_nan(isa, poison):
    matrix = pack_matrix(random_matrix("Q4_K", 40, 512), None)
    x = np.random.default_rng(7).standard_normal((35, 512), np.float32)
    wanted, _ = linear(matrix, x, isa)
    for row, column in ((0, 0), (3, 511), (17, 100), (34, 31)):
        poisoned = x.copy()
        poisoned[row, column] = poison
        got, _ = linear(matrix, poisoned, isa)
        assert np.isnan(got[row]).all()
        np.testing.assert_array_equal(np.delete(got, row, 0), np.delete(wanted, row, 0))


def test_rows_can_be_packed_in_another_order():
    tensor, order = random_matrix("Q5_K", 32, 256), np.random.default_rng(0).permutation(32).astype(np.int32)
    x = np.random.default_rng(1).standard_normal((2, 256), np.float32)
    straight, turned = (linear(pack_matrix(tensor, way), x)[0] for way in (None, order))
    np.testing.assert_array_equal(turned, straight[:, order])


def test_kernels_that_differ_from_the_portable_ones_are_not_used(monkeypatch, caplog):
    monkeypatch.setattr(self_test, "_same", lambda isa: isa == "avx2")
    monkeypatch.setattr(_native, "isas", lambda: ["amx", "avx512", "avx2", "portable"])
    with caplog.at_level(logging.WARNING):
        assert self_test.trusted_isa.__wrapped__() == "avx2"
    assert [record.args[0] for record in caplog.records] == ["amx", "avx512"]
    monkeypatch.setattr(self_test, "_same", lambda isa: False)
    assert self_test.trusted_isa.__wrapped__() == "portable"


@pytest.mark.parametrize("isa", _native.isas())
def test_an_instruction_set_can_be_asked_for_by_name(tiny_executor, isa):
    assert tiny_executor(executor="native", isa=isa).description.startswith(f"native {isa} ")


def test_an_instruction_set_that_is_not_there_is_refused_with_those_that_are(tiny_executor):
    with pytest.raises(ConfigError, match=r"--isa sve: this processor has .*portable"):
        tiny_executor(executor="native", isa="sve")
    with pytest.raises(ConfigError, match="reference executor has no choice"):
        tiny_executor(executor="reference", isa="avx2")


def test_weights_that_do_not_fit_their_shape_are_refused():
    with pytest.raises(ValueError, match="too short"):
        _native.weight(np.zeros(10, np.uint8), 0, 16, 32, np.empty(0, np.float32))
