"""The default model as it is published."""

import hashlib

import gguf
import numpy as np
import pytest

from kvist.config.model_config import DEFAULT_MODEL
from kvist.weights.catalogue import CATALOGUE
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.fetch import cached_entry

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_the_default_model_reads_as_an_independent_reader_reads_it() -> None:
    path = cached_entry(CATALOGUE[DEFAULT_MODEL])
    if path is None:
        pytest.skip("the default model is not in the cache: kvist pull")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == CATALOGUE[DEFAULT_MODEL].sha256

    checkpoint = open_checkpoint(path)

    assert checkpoint.num_parameters == 134_515_008
    assert dict(checkpoint.bytes_per_format) == {"Q4_1": 66_355_200, "Q8_0": 30_081_024, "F32": 140_544}
    for tensor in gguf.GGUFReader(path).tensors[:12]:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(checkpoint.tensor(tensor.name).dequantize(), values)
