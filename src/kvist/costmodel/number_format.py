"""What a number format costs: bytes per weight, the format of the products on a device, bytes per KV element."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvist.core.device_spec import ComputeFormat, DeviceSpec
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """weight_bytes: per parameter, scales included. products: the formats it may be computed in, fastest first."""

    name: str
    weight_bytes: float
    products: tuple[ComputeFormat, ...]
    kv_bytes: float = 2.0


FORMATS = {
    each.name: each
    for each in (
        NumberFormat(name="fp32", weight_bytes=4.0, products=("fp32", "bf16"), kv_bytes=4.0),
        NumberFormat(name="bf16", weight_bytes=2.0, products=("bf16",)),
        NumberFormat(name="fp16", weight_bytes=2.0, products=("bf16",)),
        NumberFormat(name="fp8", weight_bytes=1.0, products=("fp8", "bf16")),
        NumberFormat(name="int8", weight_bytes=1.0, products=("int8", "bf16")),  # weights and activations
        NumberFormat(name="int8-weights", weight_bytes=1.0, products=("bf16",)),
        NumberFormat(name="int4", weight_bytes=0.5625, products=("bf16",)),  # groups of 32 to 128 with scale, zero
        NumberFormat(name="fp4", weight_bytes=0.5625, products=("fp4", "fp8", "bf16")),
    )
}
_OTHER_NAMES = {
    "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "auto": "bf16", "w8a8": "int8",
    "w8a16": "int8-weights", "w4a16": "int4", "awq": "int4", "gptq": "int4", "nvfp4": "fp4", "mxfp4": "fp4",
    "float8": "fp8", "fp8-e4m3": "fp8",
}  # fmt: skip


def find_format(name: str) -> NumberFormat:
    """The format that `name` says, also in a phrase ("fp16/bf16", "not stated (bf16 likely)"). Raises ConfigError."""
    plain = name.strip().lower().replace("_", "-")
    for word in (plain, *re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", plain)):
        known = FORMATS.get(_OTHER_NAMES.get(word, word))
        if known is not None:
            return known
    raise ConfigError(
        f"number format {name!r} is not known; known are {', '.join(FORMATS)}."
        f"{did_you_mean(plain, [*FORMATS, *_OTHER_NAMES])}"
    )


def kv_element_bytes(name: str | None) -> float | None:
    """Of a key's or value's element kept in the format of this name; None, as the engine keeps it, for None."""
    if name is None:
        return None
    kv_format = find_format(name)
    return min(kv_format.weight_bytes, kv_format.kv_bytes)


def product_peak(number_format: NumberFormat, device: DeviceSpec) -> float:
    """FLOP/s of the fastest products that the device has for the format."""
    for compute_format in number_format.products:
        peak = device.peak(compute_format)
        if peak is not None:
            return peak
    raise ConfigError(f"{device.name} has no products for {number_format.name}")
