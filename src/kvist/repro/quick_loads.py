"""What quick runs change in loads whose requests are long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvist.workload.length_distribution import Uniform
from kvist.workload.single_turn import Lengths

# Any: fields of SingleTurn
QUICK_LONG_AND_SHORT: Mapping[str, Any] = {
    "num_requests": 8,
    "mix": (
        Lengths(0.3, Uniform(512, 1024), Uniform(16, 32)),
        Lengths(0.7, Uniform(32, 128), Uniform(32, 64)),
    ),
}
