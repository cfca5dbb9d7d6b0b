import gguf
import numpy as np
import pytest
from tests.fakes.random_blocks import write_small_scales

from kvist.core.errors import UnsupportedModelError
from kvist.quantization.dequantize import dequantize
from kvist.quantization.formats import FORMATS, format_of_ggml_type

ORACLE_FORMATS = [name for name in FORMATS if name != "Q8_K"]  # the oracle cannot read Q8_K


@pytest.mark.parametrize("name", FORMATS)
def test_block_sizes_are_those_of_the_format(name: str) -> None:
    weight_format = FORMATS[name]
    kind = gguf.GGMLQuantizationType[name]
    assert (weight_format.block_elements, weight_format.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    assert format_of_ggml_type(kind.value) is weight_format


@pytest.mark.parametrize("name", ORACLE_FORMATS)
def test_dequantize_agrees_with_an_independent_reader_on_random_blocks(name: str) -> None:
    weight_format = FORMATS[name]
    random = np.random.default_rng(1)
    data = random.integers(0, 256, size=(700, weight_format.block_bytes), dtype=np.uint8)
    if weight_format.is_plain:  # no infinities or NaN
        data[:, -1] &= 0x3B
    else:
        write_small_scales(data, name, random)

    ours = dequantize(data.reshape(-1), weight_format)

    oracle = gguf.dequantize(data.reshape(-1), gguf.GGMLQuantizationType[name])
    np.testing.assert_allclose(ours, oracle.reshape(-1), rtol=1e-6, atol=1e-6)


def test_q8_k_is_its_scale_times_its_bytes() -> None:
    block = np.zeros(292, dtype=np.uint8)
    block[:4] = np.frombuffer(np.float32(0.5).tobytes(), dtype=np.uint8)
    block[4:260] = np.arange(-128, 128, dtype=np.int8).view(np.uint8)
    assert dequantize(block, FORMATS["Q8_K"]).tolist() == [0.5 * value for value in range(-128, 128)]


def test_more_blocks_than_one_run_are_all_converted() -> None:
    values = np.arange(300_000, dtype=np.float32) % 1000
    data = values.astype(np.float16).view(np.uint8)
    assert (dequantize(data, FORMATS["F16"]) == values).all()


def test_an_unsupported_type_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="IQ2_XXS"):
        format_of_ggml_type(16)
    with pytest.raises(UnsupportedModelError, match="unknown type 999"):
        format_of_ggml_type(999)
