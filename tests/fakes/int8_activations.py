"""The reference's operations on activations rounded as the native kernels round them."""

from __future__ import annotations

import numpy as np

from kvist.execution.reference.operations import NumpyOperations

GROUP = 32


def quantized(x):
    """int8 with one scale per group of 32, widened again. x: [rows, width]."""
    groups = x.reshape(len(x), -1, GROUP)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    return (np.rint(groups * inverse) * scale).reshape(x.shape)


class Int8Operations(NumpyOperations):
    """For models whose matrices are all quantized, experts excepted."""

    def linear(self, x, weight, *, bias=None, split):
        return super().linear(quantized(x), weight, bias=bias, split=split)

    def logits(self, x, weight, *, softcap):
        super().logits(quantized(x), weight, softcap=softcap)
