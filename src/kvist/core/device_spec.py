"""What a device can do at most, by its data sheet: peaks, bandwidths, memory, links, price. No measurement is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ComputeFormat = Literal["fp32", "bf16", "fp8", "int8", "fp4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One accelerator (or one CPU host). Peaks are dense, without structured sparsity.

    peak_flop_per_s: by the format that the products are computed in; a format that is absent has no fast path.
    link_bytes_per_s: to the other devices of a node, one direction; network_bytes_per_s: to another node, per device.
    host_bytes_per_s: to the memory of its host, one direction.
    num_link_peers: devices that the fast link joins (2: a bridge between pairs). usable_memory_fraction: of
    `memory_bytes`, what an engine may plan with by default. price_per_hour: a default in US dollars, to be overridden.
    """

    name: str
    kind: Literal["gpu", "cpu"]
    peak_flop_per_s: tuple[tuple[ComputeFormat, float], ...]
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float
    network_bytes_per_s: float
    host_bytes_per_s: float
    price_per_hour: float
    source: str
    num_link_peers: int = 8
    usable_memory_fraction: float = 0.9

    def peak(self, compute_format: ComputeFormat) -> float | None:
        """FLOP/s in a format; None where the device has no fast path for it."""
        return dict(self.peak_flop_per_s).get(compute_format)
