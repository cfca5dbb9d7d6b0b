"""Files that the `gguf` package quantized and wrote, read by kvist."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from tests.fakes.random_blocks import write_small_scales

from kvist.quantization.formats import FORMATS
from kvist.weights.checkpoint import open_checkpoint

ROWS, WIDTH = 37, 512
PACKAGE_QUANTIZES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
BLOCKS_ONLY = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")  # the package unpacks them, but does not pack


def numbers() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)


def quantized_by_package(name: str) -> np.ndarray:
    """Rows of bytes: the package's own quantization, or for others random blocks with tame scales."""
    kind = gguf.GGMLQuantizationType[name]
    if name in PACKAGE_QUANTIZES:
        return gguf.quantize(numbers(), kind)
    form, random = FORMATS[name], np.random.default_rng(5)
    blocks = random.integers(0, 256, (ROWS * WIDTH // form.block_elements, form.block_bytes), np.uint8)
    write_small_scales(blocks, name, random)
    return blocks.reshape(ROWS, -1)


@pytest.fixture(params=[*PACKAGE_QUANTIZES, *BLOCKS_ONLY])
def written(request, tmp_path):
    """A file with one matrix, as kvist and as the package read it."""
    name, path = request.param, tmp_path / "model.gguf"
    rows = quantized_by_package(name)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    raw = gguf.GGMLQuantizationType[name]
    writer.add_tensor("weight", rows, raw_dtype=None if name in ("F32", "F16") else raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tensor,) = gguf.GGUFReader(path).tensors
    wanted = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(ROWS, WIDTH)
    return open_checkpoint(path).tensor("weight"), wanted.astype(np.float32)


def test_numbers_are_those_that_the_package_reads(written) -> None:
    tensor, wanted = written
    assert tensor.shape == wanted.shape
    np.testing.assert_allclose(tensor.dequantize(), wanted, rtol=1e-6, atol=1e-6)
