"""All candidates worth a look: placements that fit in memory, times policies, token budgets, number formats, tiers.

Placements are those of DistServe (OSDI'24): mixed replicas; on a fast network prefill and decode replicas of any kinds
and numbers (Alg. 1), on a slow one pairs that share a host, so that KV stays inside (Alg. 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

from kvist.core.errors import ConfigError
from kvist.core.model_spec import ModelSpec
from kvist.costmodel.memory import device_memory
from kvist.costmodel.number_format import find_format, product_peak
from kvist.costmodel.roofline import Placement, splits_heads
from kvist.planner.candidate import Candidate, Deployment, Shape

POLICY_BUDGETS = {
    "chunked_prefill": (512, 2048, 8192),
    "split_fuse": (512, 2048),
    "prefill_first": (8192,),
    "decode_first": (8192,),
    "slo_budget": (2048, 8192),
}
SPLIT_POLICY_BUDGETS = {"prefill_first": (2048, 8192), "chunked_prefill": (2048,)}
ROUTERS = ("round_robin", "least_loaded", "cache_aware", "kv_centric")
SPLIT_ROUTERS = ("least_loaded", "kv_centric")
MIN_KV_TOKENS = 4096  # room for less is no replica, whatever the load
FAST_NETWORK_GB_PER_S = 25.0  # per host: 200 Gb/s, where moving KV costs little beside prefill
MAX_STAGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceLimits:
    """max_devices: of all units together. A fixed number of devices is used as far as whole units go."""

    max_devices: int
    max_devices_per_unit: int
    number_formats: Sequence[str] = ("bf16",)
    host_cache_gbs: Sequence[float] = (0.0,)
    splits: bool = True
    min_kv_tokens: int = MIN_KV_TOKENS


def shapes_that_fit(model: ModelSpec, deployment: Deployment, number_format: str, limits: SpaceLimits) -> list[Shape]:
    """Single replicas by devices: ranks in one host that divide the heads, stages that divide the layers."""
    most = min(limits.max_devices_per_unit, limits.max_devices)
    return [
        Shape(tensor_parallel_size=ranks, pipeline_parallel_size=stages)
        for ranks in range(1, min(deployment.devices_per_node, most) + 1)
        if splits_heads(model, ranks)
        for stages in range(1, min(MAX_STAGES, most // ranks) + 1)
        if model.num_layers % stages == 0 and _fits(model, deployment, number_format, ranks, stages, limits)
    ]


def candidates(model: ModelSpec, deployment: Deployment, limits: SpaceLimits) -> list[Candidate]:
    """All units, as many of each as there are devices for, routers not chosen. Raises ConfigError if none fits."""
    found: list[Candidate] = []
    for number_format in limits.number_formats:
        if not _has_products(deployment, number_format):
            continue
        shapes = shapes_that_fit(model, deployment, number_format, limits)
        units = [*mixed_units(shapes), *(split_units(shapes, deployment, limits) if limits.splits else ())]
        for unit, host_cache_gb in product(units, limits.host_cache_gbs):
            num_units = limits.max_devices // unit.devices_per_unit
            policies = SPLIT_POLICY_BUDGETS if unit.is_disaggregated else POLICY_BUDGETS
            found += [
                replace(
                    unit,
                    num_units=num_units,
                    policy=policy,
                    token_budget=budget,
                    number_format=number_format,
                    host_cache_gb=host_cache_gb,
                )
                for policy, budgets in policies.items()
                for budget in budgets
            ]
    if not found:
        raise ConfigError(
            f"{deployment.model} does not fit {limits.max_devices} x {deployment.device.name} in "
            f"{', '.join(limits.number_formats)}: take more devices, larger ones, or a smaller number format"
        )
    return found


def mixed_units(shapes: Iterable[Shape]) -> Iterator[Candidate]:
    """One replica each: several are several units."""
    return (Candidate(mixed=shape) for shape in shapes)


def split_units(shapes: Sequence[Shape], deployment: Deployment, limits: SpaceLimits) -> Iterator[Candidate]:
    """Prefill and decode replicas in the ratios that fit a unit; on a slow network one pair in one host."""
    most = min(limits.max_devices_per_unit, limits.max_devices)
    if deployment.network_gb_per_s >= FAST_NETWORK_GB_PER_S:
        yield from split_ratios(shapes, most)
        return
    for prefill, decode in product(shapes, repeat=2):
        pair = Candidate(prefill=prefill, decode=decode, is_pinned=True)
        if pair.devices_per_unit <= min(most, deployment.devices_per_node):
            yield pair


def split_ratios(shapes: Sequence[Shape], max_devices: int) -> Iterator[Candidate]:
    """Prefill and decode replicas of any kinds, in all ratios of at most so many devices."""
    for prefill, decode in product(shapes, repeat=2):
        for num_prefill in range(1, max_devices // prefill.num_devices + 1):
            for num_decode in range(1, (max_devices - num_prefill * prefill.num_devices) // decode.num_devices + 1):
                if gcd(num_prefill, num_decode) == 1:  # twice as many of both are two units
                    yield Candidate(
                        prefill=replace(prefill, count=num_prefill), decode=replace(decode, count=num_decode)
                    )


def with_routers(candidate: Candidate) -> list[Candidate]:
    """The same with each router that could matter to it."""
    if candidate.num_units == 1 and all(shape.count == 1 for shape in candidate.shapes.values()):
        return [candidate]
    routers = SPLIT_ROUTERS if candidate.is_disaggregated else ROUTERS
    return [replace(candidate, router=router) for router in routers]


def _has_products(deployment: Deployment, number_format: str) -> bool:
    try:
        product_peak(find_format(number_format), deployment.device)
    except ConfigError:
        return False
    return True


def _fits(
    model: ModelSpec, deployment: Deployment, number_format: str, ranks: int, stages: int, limits: SpaceLimits
) -> bool:
    placement = Placement(
        model=model,
        device=deployment.device,
        number_format=find_format(number_format),
        tensor_parallel_size=ranks,
        pipeline_parallel_size=stages,
    )
    try:
        return device_memory(placement).num_kv_tokens >= limits.min_kv_tokens
    except ConfigError:
        return False
