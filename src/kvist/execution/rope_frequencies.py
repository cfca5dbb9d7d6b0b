"""Rotary frequencies of a layer, with the scalings that stretch them. Shared by all executors."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvist.core.model_spec import LayerSpec, RopeScaling


def rope_frequencies(
    layer: LayerSpec, head_dim: int, divisors: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Radians per position of each rotary pair, [head_dim / 2]. Computed in float64, rounded once.

    divisors: what a GGUF file brings in place of a scaling.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    frequencies = layer.rope_theta**-exponents
    if divisors is not None:
        frequencies = frequencies / divisors
    elif layer.rope_scaling is not None:
        frequencies = _scaled(frequencies, layer.rope_scaling)
    return frequencies.astype(np.float32)


def _scaled(frequencies: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Linear: all slower by the factor. Llama 3: only those whose wave is long; in between a smooth passage."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    waves_in_context = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    unscaled_share = np.clip((waves_in_context - low) / (high - low), 0.0, 1.0)
    return frequencies * (unscaled_share + (1 - unscaled_share) / scaling.factor)
