import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from kvist.quantization.dequantize import dequantize
from kvist.quantization.formats import FORMATS
from kvist.quantization.quantize import quantize

# Largest error, as a fraction of the largest magnitude in a block of normal numbers: about half a step of each
# format, plus the rounding of the scales.
TOLERANCE = {
    "F32": 0, "F16": 0.0005, "BF16": 0.004, "Q8_0": 0.005, "Q4_0": 0.14, "Q4_1": 0.07, "Q5_0": 0.07, "Q5_1": 0.035,
    "Q4_K": 0.09, "Q5_K": 0.05, "Q6_K": 0.04,
}  # fmt: skip


@pytest.mark.parametrize("name", TOLERANCE)
def test_numbers_come_back_within_half_a_step(name: str) -> None:
    values = np.random.default_rng(2).standard_normal((300, 256), dtype=np.float32)

    back = dequantize(quantize(values, FORMATS[name]), FORMATS[name]).reshape(values.shape)

    error = np.abs(back - values).max(axis=1) / np.abs(values).max(axis=1)
    assert error.max() <= TOLERANCE[name]


@pytest.mark.parametrize("name", TOLERANCE)
def test_an_independent_reader_reads_the_same_numbers(name: str) -> None:
    values = np.random.default_rng(3).standard_normal(256 * 40, dtype=np.float32)
    data = quantize(values, FORMATS[name])
    oracle = gguf.dequantize(data, gguf.GGMLQuantizationType[name]).reshape(-1)
    np.testing.assert_allclose(dequantize(data, FORMATS[name]), oracle, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", TOLERANCE)
@settings(max_examples=25, deadline=None)
@given(
    values=numpy_strategies.arrays(
        np.float32, 256, elements=st.floats(-1000, 1000, width=32), fill=st.sampled_from([0.0, 1.0, -3.0])
    )
)
def test_any_numbers_give_finite_ones_of_the_same_range(name: str, values: np.ndarray) -> None:
    back = dequantize(quantize(values, FORMATS[name]), FORMATS[name])
    assert np.isfinite(back).all()
    assert np.abs(back - values).max() <= 0.15 * np.abs(values).max() * 2 + 1e-3


def test_zeros_stay_zeros() -> None:
    for name in TOLERANCE:
        back = dequantize(quantize(np.zeros(512, dtype=np.float32), FORMATS[name]), FORMATS[name])
        assert not back.any()


def test_brain_floats_round_to_nearest_even() -> None:
    values = np.array([1.00390625, 1.01171875], dtype=np.float32)  # halfway between two brain floats
    assert dequantize(quantize(values, FORMATS["BF16"]), FORMATS["BF16"]).tolist() == [1.0, 1.015625]
