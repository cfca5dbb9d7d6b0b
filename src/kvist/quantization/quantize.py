"""Turns float32 numbers into stored weights: the inverse of dequantize, by plain rounding within each block.

Scales come from each block's range, without a search for better ones: good enough to write test models, and no
claim to be the best file for a given size. Scales are rounded to what the file can hold before the numbers are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvist.quantization.formats import WeightFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_RUN_ELEMENTS = 1 << 17


def quantize(values: Floats, weight_format: WeightFormat) -> Bytes:
    """Return `values` (flat or any shape, whole blocks, finite) as stored bytes, 1-D.

    Raises KeyError for a format that can be read but not written.
    """
    if weight_format.name == "F32":
        return np.ascontiguousarray(values, dtype="<f4").reshape(-1).view(np.uint8)
    layout = _LAYOUTS[weight_format.name]
    blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, weight_format.block_elements)
    out = np.empty((len(blocks), weight_format.block_bytes), dtype=np.uint8)
    run = max(1, _RUN_ELEMENTS // weight_format.block_elements)
    for start in range(0, len(blocks), run):
        layout(blocks[start : start + run], out[start : start + run])
    return out.reshape(-1)


def quantizable_formats() -> frozenset[str]:
    """Names of the formats that `quantize` writes."""
    return frozenset(_LAYOUTS) | {"F32"}


def _f16(blocks: Floats, out: Bytes) -> None:
    out[:] = blocks.astype("<f2").view(np.uint8)


def _bf16(blocks: Floats, out: Bytes) -> None:
    bits = blocks.view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))  # to nearest, ties to even
    out[:] = (rounded >> 16).astype("<u2").view(np.uint8)


def _put_half(values: Floats, out: Bytes, start: int) -> Floats:
    """Write one float16 per block at byte `start`; return what was really written, [num_blocks, 1]."""
    half = values.astype("<f2").reshape(-1, 1)
    out[:, start : start + 2] = half.view(np.uint8)
    return half.astype(np.float32)


def _divide(values: Floats, by: Floats) -> Floats:
    """values / by, and 0 where `by` is 0."""
    return np.divide(values, by, out=np.zeros(np.broadcast(values, by).shape, dtype=np.float32), where=by != 0)


def _round(values: Floats, low: int, high: int) -> Bytes:
    """Nearest whole numbers, kept in range; negative ones come as their two's complement."""
    return np.clip(np.rint(values), low, high).astype(np.int16).astype(np.uint8)


def _signed_extreme(values: Floats) -> Floats:
    """The number of largest magnitude along the last axis, with its sign: [..., 1]."""
    index = np.abs(values).argmax(axis=-1)[..., None]
    return np.take_along_axis(values, index, axis=-1)


def _symmetric(blocks: Floats, out: Bytes, levels: int) -> Bytes:
    """The extreme becomes the lowest of `levels`, so that its sign decides the scale's."""
    half = levels // 2
    scale = _put_half(_signed_extreme(blocks) / np.float32(-half), out, 0)
    return _round(_divide(blocks, scale) + half, 0, levels - 1)


def _ranged(blocks: Floats, out: Bytes, levels: int) -> Bytes:
    low = blocks.min(axis=1, keepdims=True)
    minimum = _put_half(low, out, 2)
    scale = _put_half((blocks.max(axis=1, keepdims=True) - low) / (levels - 1), out, 0)
    return _round(_divide(blocks - minimum, scale), 0, levels - 1)


def _nibble_pairs(low: Bytes, high: Bytes) -> Bytes:
    pairs: Bytes = np.bitwise_or(low & np.uint8(15), high << np.uint8(4))
    return pairs


def _pack_nibbles(quants: Bytes) -> Bytes:
    return _nibble_pairs(quants[:, :16], quants[:, 16:])


def _pack_fifth_bits(quants: Bytes) -> Bytes:
    return np.packbits(quants >> 4, axis=1, bitorder="little")


def _q4_0(blocks: Floats, out: Bytes) -> None:
    out[:, 2:] = _pack_nibbles(_symmetric(blocks, out, 16))


def _q4_1(blocks: Floats, out: Bytes) -> None:
    out[:, 4:] = _pack_nibbles(_ranged(blocks, out, 16))


def _q5_0(blocks: Floats, out: Bytes) -> None:
    quants = _symmetric(blocks, out, 32)
    out[:, 2:6] = _pack_fifth_bits(quants)
    out[:, 6:] = _pack_nibbles(quants)


def _q5_1(blocks: Floats, out: Bytes) -> None:
    quants = _ranged(blocks, out, 32)
    out[:, 4:8] = _pack_fifth_bits(quants)
    out[:, 8:] = _pack_nibbles(quants)


def _q8_0(blocks: Floats, out: Bytes) -> None:
    scale = _put_half(np.abs(blocks).max(axis=1) / 127, out, 0)
    out[:, 2:] = _round(_divide(blocks, scale), -127, 127)


def _ranged_groups(blocks: Floats, out: Bytes, levels: int) -> Bytes:
    """Eight groups of 32, each with a six-bit scale and minimum, themselves scaled per block: Q4_K and Q5_K."""
    groups = blocks.reshape(-1, 8, 32)
    minima = np.maximum(-groups.min(axis=2), 0)
    scales = (groups.max(axis=2) + minima) / (levels - 1)
    scale_of_scales = _put_half(scales.max(axis=1) / 63, out, 0)
    scale_of_minima = _put_half(minima.max(axis=1) / 63, out, 2)
    whole_scales = _round(_divide(scales, scale_of_scales), 0, 63)
    whole_minima = _round(_divide(minima, scale_of_minima), 0, 63)
    out[:, 4:8] = whole_scales[:, :4] | ((whole_scales[:, 4:] >> 4) << 6)
    out[:, 8:12] = whole_minima[:, :4] | ((whole_minima[:, 4:] >> 4) << 6)
    out[:, 12:16] = (whole_scales[:, 4:] & 15) | ((whole_minima[:, 4:] & 15) << 4)
    shifted = groups + (scale_of_minima * whole_minima)[:, :, None]
    return _round(_divide(shifted, (scale_of_scales * whole_scales)[:, :, None]), 0, levels - 1)


def _pack_pairs(quants: Bytes) -> Bytes:
    """Groups 2i and 2i+1 share a run of 32 bytes as low and high nibbles."""
    return _nibble_pairs(quants[:, 0::2], quants[:, 1::2]).reshape(-1, 128)


def _q4_k(blocks: Floats, out: Bytes) -> None:
    out[:, 16:] = _pack_pairs(_ranged_groups(blocks, out, 16))


def _q5_k(blocks: Floats, out: Bytes) -> None:
    quants = _ranged_groups(blocks, out, 32)
    out[:, 16:48] = np.bitwise_or.reduce([(quants[:, group] >> 4) << group for group in range(8)])
    out[:, 48:] = _pack_pairs(quants)


def _q6_k(blocks: Floats, out: Bytes) -> None:
    groups = blocks.reshape(-1, 16, 16)
    scales: Floats = _signed_extreme(groups)[:, :, 0] / np.float32(-32)
    scale_of_scales = _put_half(_signed_extreme(scales) / np.float32(-128), out, 208)
    whole_scales = _round(_divide(scales, scale_of_scales), -128, 127)
    out[:, 192:208] = whole_scales
    effective = (scale_of_scales * whole_scales.view(np.int8))[:, :, None]
    quants = _round(_divide(groups, effective) + 32, 0, 63)
    quarters = quants.reshape(-1, 2, 4, 32)
    out[:, :128] = _nibble_pairs(quarters[:, :, :2], quarters[:, :, 2:]).reshape(-1, 128)
    high = [(quarters[:, :, quarter] >> 4) << (2 * quarter) for quarter in range(4)]
    out[:, 128:192] = np.bitwise_or.reduce(high).reshape(-1, 64)


_LAYOUTS: dict[str, Callable[[Floats, Bytes], None]] = {
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
