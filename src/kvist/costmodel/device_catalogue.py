"""Devices by name, with the figures of their makers' data sheets, and how the names that people write are read.

Prices are typical on-demand rates per hour of late 2025, one device of a larger machine; whoever plans gives their own.
"""

from __future__ import annotations

import re

from kvist.core.device_spec import ComputeFormat, DeviceSpec
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean

TERA, GIGA = 1e12, 1e9


def _gpu(  # noqa: PLR0913 - one figure of the data sheet each
    name: str,
    *,
    bf16: float,
    memory_gb: float,
    memory_gb_per_s: float,
    link_gb_per_s: float,
    price: float,
    fp8: float | None = None,
    int8: float | None = None,
    fp4: float | None = None,
    host_gb_per_s: float = 32.0,
    network_gb_per_s: float = 25.0,
    num_link_peers: int = 8,
    source: str = "NVIDIA data sheet",
) -> DeviceSpec:
    peaks: list[tuple[ComputeFormat, float]] = [("bf16", bf16 * TERA)]
    for key, value in (("fp8", fp8), ("int8", int8), ("fp4", fp4)):
        if value is not None:
            peaks.append((key, value * TERA))  # type: ignore[arg-type]
    return DeviceSpec(
        name=name,
        kind="gpu",
        peak_flop_per_s=tuple(peaks),
        memory_bytes=int(memory_gb * GIGA),
        memory_bytes_per_s=memory_gb_per_s * GIGA,
        link_bytes_per_s=link_gb_per_s * GIGA,
        network_bytes_per_s=network_gb_per_s * GIGA,
        host_bytes_per_s=host_gb_per_s * GIGA,
        price_per_hour=price,
        source=source,
        num_link_peers=num_link_peers,
    )


DEVICES = {
    device.name: device
    for device in (
        _gpu("A100-40GB-SXM", bf16=312, int8=624, memory_gb=42.9, memory_gb_per_s=1555, link_gb_per_s=300, price=1.6),
        _gpu("A100-80GB-SXM", bf16=312, int8=624, memory_gb=85.9, memory_gb_per_s=2039, link_gb_per_s=300, price=2.21),
        _gpu(
            "A100-40GB-PCIe", bf16=312, int8=624, memory_gb=42.9, memory_gb_per_s=1555, link_gb_per_s=300,
            num_link_peers=2, price=1.5,
        ),
        _gpu(
            "A100-80GB-PCIe", bf16=312, int8=624, memory_gb=85.9, memory_gb_per_s=1935, link_gb_per_s=300,
            num_link_peers=2, price=1.9,
        ),
        _gpu(
            "A800-80GB-SXM", bf16=312, int8=624, memory_gb=85.9, memory_gb_per_s=2039, link_gb_per_s=200, price=2.21,
        ),
        _gpu(
            "H100-80GB-SXM", bf16=989, fp8=1979, int8=1979, memory_gb=85.5, memory_gb_per_s=3350, link_gb_per_s=450,
            host_gb_per_s=64, network_gb_per_s=50, price=4.02,
        ),
        _gpu(
            "H100-80GB-PCIe", bf16=756, fp8=1513, int8=1513, memory_gb=85.5, memory_gb_per_s=2000, link_gb_per_s=300,
            host_gb_per_s=64, num_link_peers=2, price=2.99,
        ),
        _gpu(
            "H800-80GB-SXM", bf16=989, fp8=1979, int8=1979, memory_gb=85.5, memory_gb_per_s=3350, link_gb_per_s=200,
            host_gb_per_s=64, network_gb_per_s=50, price=4.02,
        ),
        _gpu(
            "H20-96GB-SXM", bf16=148, fp8=296, int8=296, memory_gb=103.1, memory_gb_per_s=4000, link_gb_per_s=450,
            host_gb_per_s=64, network_gb_per_s=50, price=2.0,
        ),
        _gpu(
            "H200-141GB-SXM", bf16=989, fp8=1979, int8=1979, memory_gb=150.8, memory_gb_per_s=4800, link_gb_per_s=450,
            host_gb_per_s=64, network_gb_per_s=50, price=4.5,
        ),
        _gpu(
            "GH200-96GB", bf16=989, fp8=1979, int8=1979, memory_gb=102.0, memory_gb_per_s=4000, link_gb_per_s=450,
            host_gb_per_s=450, network_gb_per_s=50, price=3.5,
        ),
        _gpu(
            "B200-180GB-SXM", bf16=2250, fp8=4500, int8=4500, fp4=9000, memory_gb=192.0, memory_gb_per_s=8000,
            link_gb_per_s=900, host_gb_per_s=64, network_gb_per_s=50, price=6.25,
        ),
        _gpu(
            "L40S", bf16=362, fp8=733, int8=733, memory_gb=48.3, memory_gb_per_s=864, link_gb_per_s=32,
            network_gb_per_s=12.5, price=1.6,
        ),
        _gpu(
            "L4", bf16=121, fp8=242, int8=242, memory_gb=24.0, memory_gb_per_s=300, link_gb_per_s=32,
            network_gb_per_s=3.1, price=0.8, source="NVIDIA data sheet; price of g6.xlarge",
        ),
        _gpu(
            "A10G", bf16=70, int8=140, memory_gb=24.0, memory_gb_per_s=600, link_gb_per_s=32, network_gb_per_s=3.1,
            price=1.01, source="NVIDIA and AWS data sheets; price of g5.xlarge",
        ),
        _gpu(
            "A40", bf16=149.7, int8=299.3, memory_gb=48.3, memory_gb_per_s=696, link_gb_per_s=56.25,
            num_link_peers=2, price=0.79,
        ),
        _gpu(
            "RTX-A6000", bf16=154.8, int8=309.7, memory_gb=48.3, memory_gb_per_s=768, link_gb_per_s=56.25,
            num_link_peers=2, price=0.8,
        ),
        _gpu(
            "RTX-4090", bf16=165.2, fp8=330.3, int8=660.6, memory_gb=24.0, memory_gb_per_s=1008, link_gb_per_s=32,
            network_gb_per_s=3.1, price=0.5, source="NVIDIA Ada white paper, products summed in fp32",
        ),
        _gpu("V100-32GB-SXM", bf16=125, memory_gb=34.1, memory_gb_per_s=900, link_gb_per_s=150, host_gb_per_s=16,
             price=1.2),
        _gpu("T4", bf16=65, int8=130, memory_gb=15.8, memory_gb_per_s=320, link_gb_per_s=16, host_gb_per_s=16,
             network_gb_per_s=3.1, price=0.53),
        _gpu(
            "MI300X-192GB", bf16=1307, fp8=2615, int8=2615, memory_gb=206.0, memory_gb_per_s=5300,
            link_gb_per_s=448, host_gb_per_s=64, network_gb_per_s=50, price=3.5, source="AMD data sheet",
        ),
    )
}  # fmt: skip

_SHORT = {
    "a100": "A100-80GB-SXM", "a100-80gb": "A100-80GB-SXM", "a100-80g": "A100-80GB-SXM", "a100-40gb": "A100-40GB-SXM",
    "a100-40g": "A100-40GB-SXM", "a100-sxm": "A100-80GB-SXM", "a100-pcie": "A100-80GB-PCIe", "a800": "A800-80GB-SXM",
    "h100": "H100-80GB-SXM", "h100-80gb": "H100-80GB-SXM", "h100-sxm": "H100-80GB-SXM", "h100-pcie": "H100-80GB-PCIe",
    "h800": "H800-80GB-SXM", "h20": "H20-96GB-SXM", "h200": "H200-141GB-SXM", "h200-sxm": "H200-141GB-SXM",
    "gh200": "GH200-96GB", "b200": "B200-180GB-SXM", "b200-sxm": "B200-180GB-SXM", "b200-192gb-sxm": "B200-180GB-SXM",
    "l40s-48gb": "L40S", "l4-24gb": "L4", "a10g-24gb": "A10G", "a10": "A10G", "a40-48gb": "A40", "a6000": "RTX-A6000",
    "rtx-a6000-48gb": "RTX-A6000", "4090": "RTX-4090", "rtx4090": "RTX-4090", "rtx-4090-24gb": "RTX-4090",
    "v100": "V100-32GB-SXM", "t4-16gb": "T4", "mi300x": "MI300X-192GB",
}  # fmt: skip


def find_device(name: str) -> DeviceSpec:
    """The device that people call `name`; what stands in brackets is read as a remark. Raises ConfigError."""
    plain = re.sub(r"\(.*?\)", "", name).strip().lower()
    plain = re.sub(r"^nvidia[- ]", "", re.sub(r"[\s_]+", "-", plain))
    plain = re.sub(r"-(sxm)\d$", r"-\1", plain.replace("geforce-", ""))
    by_lower = {known.lower(): device for known, device in DEVICES.items()}
    if plain in _SHORT:
        return DEVICES[_SHORT[plain]]
    if plain in by_lower:
        return by_lower[plain]
    raise ConfigError(
        f"device {name!r} is not in the catalogue; known are {', '.join(DEVICES)}."
        f"{did_you_mean(name, [*DEVICES, *_SHORT])}"
    )
