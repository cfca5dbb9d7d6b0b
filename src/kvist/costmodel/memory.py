"""How many KV blocks fit a device beside weights, activations and a reserve: what limits the batch of a placement."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.core.errors import ConfigError
from kvist.costmodel.layer_work import ACTIVATION_BYTES
from kvist.costmodel.model_size import count_parameters, embedding_parameters
from kvist.costmodel.roofline import Placement

FULL_PRECISION = 2.0  # bytes per number of what quantization leaves alone: the embeddings
RUNTIME_BYTES = 1.5e9  # the device's driver, libraries and graphs, per rank


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes of one rank."""

    weight_bytes: float
    activation_bytes: float
    runtime_bytes: float
    reserve_bytes: float
    kv_bytes_per_token: float
    kv_pool_bytes: float

    @property
    def num_kv_tokens(self) -> int:
        return int(self.kv_pool_bytes // self.kv_bytes_per_token)


def kv_bytes_per_token(placement: Placement) -> float:
    """K and V of one token in all layers, wherever they lie. The engine's own table counts by the same method."""
    return placement.model.kv_bytes_per_token(placement.kv_bytes)


def device_memory(
    placement: Placement, *, max_num_batched_tokens: int = 8192, memory_fraction: float | None = None
) -> DeviceMemory:
    """Share out one rank's memory; the KV pool takes what is left. Raises ConfigError if nothing is left.

    memory_fraction: of the device's memory, what may be used; the rest is the reserve. None: as the device says.
    """
    device, spec = placement.device, placement.model
    ranks, stages = placement.tensor_parallel_size, placement.pipeline_parallel_size
    fraction = device.usable_memory_fraction if memory_fraction is None else memory_fraction
    embeddings = embedding_parameters(spec) * (1 if spec.tie_embeddings else 2)
    inner = count_parameters(spec) - embeddings
    weights = inner * placement.number_format.weight_bytes + embeddings * max(
        FULL_PRECISION, placement.number_format.weight_bytes
    )
    weight_bytes = weights / (ranks * stages)
    widest = max(4 * spec.hidden_size, 2 * spec.intermediate_size // ranks + 2 * spec.hidden_size)
    activation_bytes = ACTIVATION_BYTES * max_num_batched_tokens * widest
    # Ranks that outnumber the KV heads hold copies.
    kv_bytes = kv_bytes_per_token(placement) / min(ranks, spec.num_kv_heads) / stages
    usable = fraction * device.memory_bytes
    pool = usable - weight_bytes - activation_bytes - RUNTIME_BYTES
    if pool < kv_bytes:
        raise ConfigError(
            f"a {device.name} has {usable / 1e9:.1f} GB to use; {weight_bytes / 1e9:.1f} GB of weights (tensor "
            f"parallel size {ranks}, pipeline {stages}), {activation_bytes / 1e9:.1f} GB of activations and "
            f"{RUNTIME_BYTES / 1e9:.1f} GB of runtime leave no room for keys and values. Take more devices or "
            "a smaller number format"
        )
    return DeviceMemory(
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        runtime_bytes=RUNTIME_BYTES,
        reserve_bytes=device.memory_bytes - usable,
        kv_bytes_per_token=kv_bytes,
        kv_pool_bytes=pool,
    )
