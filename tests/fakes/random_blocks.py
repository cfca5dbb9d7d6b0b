"""Random bits as blocks of a quantized format: all of them may be anything but the scales, which stay tame."""

from __future__ import annotations

import numpy as np

SCALE_OFFSETS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,),
}  # fmt: skip


def write_small_scales(data: np.ndarray, name: str, random: np.random.Generator) -> None:
    """data: [blocks, bytes of one]."""
    for offset in SCALE_OFFSETS[name]:
        scales = random.uniform(-0.1, 0.1, size=(len(data), 1)).astype(np.float16)
        data[:, offset : offset + 2] = scales.view(np.uint8)
