"""Turns stored weights into float32. Knows block layouts; nothing of files, tensors' names or shapes.

Each layout function fills `out` [num_blocks, block_elements] from `blocks` [num_blocks, block_bytes] (uint8). Blocks
are taken in runs that stay in the processor's cache, which is what makes this fast.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvist.quantization.formats import WeightFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_RUN_ELEMENTS = 1 << 17  # 512 KiB of float32
_IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)


def dequantize(data: Bytes, weight_format: WeightFormat) -> Floats:
    """Return the numbers that `data` (whole blocks, 1-D) holds, flat. F32 comes back as a view of `data`."""
    if weight_format.name == "F32":
        return data.view("<f4")
    blocks = data.reshape(-1, weight_format.block_bytes)
    out = np.empty((len(blocks), weight_format.block_elements), dtype=np.float32)
    layout = _LAYOUTS[weight_format.name]
    run = max(1, _RUN_ELEMENTS // weight_format.block_elements)
    with np.errstate(invalid="ignore", over="ignore"):  # a damaged scale may be infinite: the model's outputs tell
        for start in range(0, len(blocks), run):
            layout(blocks[start : start + run], out[start : start + run])
    return out.reshape(-1)


def _half(blocks: Bytes, start: int) -> Floats:
    """One float16 per block at byte `start`: [num_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _f16(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks.view("<f2")


def _bf16(blocks: Bytes, out: Floats) -> None:
    out.view(np.uint32)[:] = blocks.view("<u2").astype(np.uint32) << np.uint32(16)


def _nibbles(packed: Bytes, out: Floats) -> None:
    """Low nibbles of the 16 bytes are the first half of the block, high nibbles the second."""
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4


def _fifth_bits(packed: Bytes) -> Floats:
    """16 for each of a block's 32 numbers whose high bit is set, else 0."""
    return np.unpackbits(packed, axis=1, bitorder="little") * np.float32(16)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _half(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 4:], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q5_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 6:], out)
    out += _fifth_bits(blocks[:, 2:6])
    out -= 16
    out *= _half(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 8:], out)
    out += _fifth_bits(blocks[:, 4:8])
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


def _iq4_nl(blocks: Bytes, out: Floats) -> None:
    out[:, :16] = _IQ4_NL_VALUES[blocks[:, 2:] & 15]
    out[:, 16:] = _IQ4_NL_VALUES[blocks[:, 2:] >> 4]
    out *= _half(blocks, 0)


def _q8_k(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks[:, 4:260].view(np.int8)
    out *= np.ascontiguousarray(blocks[:, :4]).view("<f4")


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack the 8 six-bit scales and 8 six-bit minima of Q4_K and Q5_K from 12 bytes.

    Bytes 0-3 and 4-7 hold the first four of each in their low 6 bits, and in their top 2 bits the top of the last
    four, whose low nibbles share bytes 8-11.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=1)
    return scales, minima


def _apply_scales_and_minima(blocks: Bytes, out: Floats) -> None:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    groups = out.reshape(-1, 8, 32)
    groups *= (_half(blocks, 0) * scales)[:, :, None]
    groups -= (_half(blocks, 2) * minima)[:, :, None]


def _q4_k(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 16:].reshape(-1, 4, 32)
    pairs = out.reshape(-1, 4, 2, 32)  # a run of 32 bytes holds 32 low nibbles, then 32 high ones
    pairs[:, :, 0] = packed & 15
    pairs[:, :, 1] = packed >> 4
    _apply_scales_and_minima(blocks, out)


def _q5_k(blocks: Bytes, out: Floats) -> None:
    high, packed = blocks[:, 16:48], blocks[:, 48:].reshape(-1, 4, 32)
    pairs = out.reshape(-1, 4, 2, 32)
    for run in range(4):  # bit 2*run of `high` belongs to the low nibbles, the next to the high ones
        pairs[:, run, 0] = (packed[:, run] & 15) | (((high >> (2 * run)) & 1) << 4)
        pairs[:, run, 1] = (packed[:, run] >> 4) | (((high >> (2 * run + 1)) & 1) << 4)
    _apply_scales_and_minima(blocks, out)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    quarters = out.reshape(-1, 2, 4, 32)
    for quarter in range(4):
        nibbles = (low[:, :, quarter % 2] >> (4 * (quarter // 2))) & 15
        quarters[:, :, quarter] = nibbles | (((high >> (2 * quarter)) & 3) << 4)
    out -= 32
    groups = out.reshape(-1, 16, 16)
    groups *= (_half(blocks, 208) * blocks[:, 192:208].view(np.int8))[:, :, None]


def _two_bits(packed: Bytes, out: Floats) -> None:
    quarters = out.reshape(-1, 2, 4, 32)
    halves = packed.reshape(-1, 2, 32)
    for quarter in range(4):
        quarters[:, :, quarter] = (halves >> (2 * quarter)) & 3


def _q2_k(blocks: Bytes, out: Floats) -> None:
    _two_bits(blocks[:, 16:80], out)
    groups = out.reshape(-1, 16, 16)
    groups *= (_half(blocks, 80) * (blocks[:, :16] & 15))[:, :, None]
    groups -= (_half(blocks, 82) * (blocks[:, :16] >> 4))[:, :, None]


def _q3_k(blocks: Bytes, out: Floats) -> None:
    _two_bits(blocks[:, 32:96], out)
    eighths = out.reshape(-1, 8, 32)
    for eighth in range(8):  # a clear bit means minus four
        eighths[:, eighth] -= (~(blocks[:, :32] >> eighth) & 1) * np.float32(4)
    packed = blocks[:, 96:108]
    low = np.concatenate((packed[:, :8] & 15, packed[:, :8] >> 4), axis=1)
    high = np.concatenate([(packed[:, 8:12] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    groups = out.reshape(-1, 16, 16)
    groups *= (_half(blocks, 108) * ((low | (high << 4)).astype(np.float32) - 32))[:, :, None]


_LAYOUTS: dict[str, Callable[[Bytes, Floats], None]] = {
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_K": _q8_k,
    "IQ4_NL": _iq4_nl,
}
