"""One way to serve a model: which groups of devices do what, under which policies. Becomes a cluster to simulate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvist.config.cluster_config import (
    ClusterCacheConfig,
    ClusterConfig,
    LinksConfig,
    ReplicaGroupConfig,
    RouterConfig,
)
from kvist.core.device_spec import DeviceSpec
from kvist.planner.service_level_objective import ServiceLevelObjective

GIGA = 1e9
MAX_NUM_SEQS = 256
MIXED, PREFILL, DECODE = "mixed", "prefill", "decode"
SLO_BUDGET = "slo_budget"  # the policy that is told the targets


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Shape:
    """Equal replicas, and how each is spread over devices: ranks split layers, stages share them out."""

    tensor_parallel_size: int
    pipeline_parallel_size: int = 1
    count: int = 1

    @property
    def num_devices(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.count

    @property
    def text(self) -> str:
        sizes = f"TP{self.tensor_parallel_size} PP{self.pipeline_parallel_size}"
        return sizes if self.count == 1 else f"{self.count} x {sizes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What all candidates have in common.

    devices_per_node: of one host. network_gb_per_s: of one host, one direction.
    """

    model: str
    device: DeviceSpec
    devices_per_node: int
    network_gb_per_s: float
    price_per_device_hour: float
    objective: ServiceLevelObjective


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A unit of replicas, and how many such units there are.

    Either `mixed` replicas that do both phases, or `prefill` and `decode` replicas. host_cache_gb: of host memory per
    device that keeps evicted keys and values. kv_cache_tokens: of a replica's pool; None: as much as there is room for.
    profile: of the measured host that each replica runs on; None: on devices of the catalogue.
    """

    mixed: Shape | None = None
    prefill: Shape | None = None
    decode: Shape | None = None
    num_units: int = 1
    policy: str = "chunked_prefill"
    token_budget: int = 8192
    number_format: str = "bf16"
    router: str = "least_loaded"
    host_cache_gb: float = 0.0
    max_num_seqs: int = MAX_NUM_SEQS
    enable_prefix_caching: bool = True
    attention: str = "flash"
    num_kv_heads: int | None = None
    kv_cache_tokens: int | None = None
    profile: str | None = None
    is_pinned: bool = False  # prefill and decode of a unit lie in one host, as a slow network asks for

    @property
    def shapes(self) -> dict[str, Shape]:
        """By the name of the group."""
        roles = {MIXED: self.mixed, PREFILL: self.prefill, DECODE: self.decode}
        return {name: shape for name, shape in roles.items() if shape is not None}

    @property
    def is_disaggregated(self) -> bool:
        return self.mixed is None

    @property
    def devices_per_unit(self) -> int:
        return sum(shape.num_devices for shape in self.shapes.values())

    @property
    def num_devices(self) -> int:
        return self.num_units * self.devices_per_unit

    @property
    def unit(self) -> Candidate:
        """One unit of it alone."""
        return replace(self, num_units=1)

    @property
    def text(self) -> str:
        """In a line, for tables. Equal candidates have equal texts, different ones different texts."""
        roles = [text if name == MIXED else f"{name} {text}" for name, text in self._shape_texts.items()]
        units = f"{self.num_units} x " if self.num_units > 1 else ""
        inner = " + ".join(roles)
        parts = [f"{units}({inner})" if units else inner, self.policy, f"{self.token_budget} tokens"]
        if self.number_format != "bf16":
            parts.append(self.number_format)
        if self.host_cache_gb:
            parts.append(f"{self.host_cache_gb:g} GB host cache")
        if self.max_num_seqs != MAX_NUM_SEQS:
            parts.append(f"{self.max_num_seqs} sequences")
        if self.kv_cache_tokens is not None:
            parts.append(f"{self.kv_cache_tokens} KV tokens")
        if not self.enable_prefix_caching:
            parts.append("no prefix cache")
        if self.attention != "flash":
            parts.append(f"{self.attention} attention")
        if self.num_kv_heads is not None:
            parts.append(f"{self.num_kv_heads} KV heads")
        if self.is_pinned:
            parts.append("unit in one host")
        if self.num_units > 1 or any(shape.count > 1 for shape in self.shapes.values()):
            parts.append(self.router)
        return ", ".join(parts)

    @property
    def _shape_texts(self) -> dict[str, str]:
        if self.profile is None:
            return {name: shape.text for name, shape in self.shapes.items()}
        return {
            name: self.profile if shape.count == 1 else f"{shape.count} x {self.profile}"
            for name, shape in self.shapes.items()
        }


def cluster_of(candidate: Candidate, deployment: Deployment, *, kv_bytes_per_token: int) -> ClusterConfig:
    """The cluster to simulate; room for KV is left to `place_cluster`. Prefill replicas come before decoding ones."""
    groups = [
        _group(name, shape, candidate, deployment, kv_bytes_per_token) for name, shape in candidate.shapes.items()
    ]
    device = deployment.device
    inside = (
        device.link_bytes_per_s if device.num_link_peers >= deployment.devices_per_node else device.host_bytes_per_s
    )
    return ClusterConfig(
        groups=tuple(replace(group, count=group.count * candidate.num_units) for group in groups),
        cache=ClusterCacheConfig(kv_bytes_per_token=kv_bytes_per_token),
        links=LinksConfig(
            devices_per_node=deployment.devices_per_node,
            intra_node_gb_per_s=inside / GIGA,
            inter_node_gb_per_s=deployment.network_gb_per_s,
            host_gb_per_s=device.host_bytes_per_s / GIGA,
        ),
        router=RouterConfig(
            policy=candidate.router,
            ttft_slo_s=deployment.objective.ttft_s,
            tpot_slo_s=deployment.objective.tpot_s,
        ),
    )


def _group(
    name: str, shape: Shape, candidate: Candidate, deployment: Deployment, kv_bytes_per_token: int
) -> ReplicaGroupConfig:
    devices = shape.tensor_parallel_size * shape.pipeline_parallel_size
    targets = deployment.objective if candidate.policy == SLO_BUDGET else None
    group = ReplicaGroupConfig(
        name=name,
        count=shape.count,
        prefill_weight=0.0 if name == DECODE else 1.0,
        decode_weight=0.0 if name == PREFILL else 1.0,
        model=deployment.model,
        device=deployment.device.name,
        dtype=candidate.number_format,
        host_cache_tokens=int(candidate.host_cache_gb * GIGA * devices / kv_bytes_per_token),
        tensor_parallel_size=shape.tensor_parallel_size,
        pipeline_parallel_size=shape.pipeline_parallel_size,
        policy=candidate.policy,
        max_num_batched_tokens=candidate.token_budget,
        max_num_seqs=candidate.max_num_seqs,
        kv_cache_tokens=candidate.kv_cache_tokens,
        enable_prefix_caching=candidate.enable_prefix_caching,
        attention=candidate.attention,
        num_kv_heads=candidate.num_kv_heads,
    )
    if targets is not None and targets.ttft_s is not None:
        group = replace(group, default_ttft_ms=targets.ttft_s * 1e3)
    if targets is not None and targets.tpot_s is not None:
        group = replace(group, default_tpot_ms=targets.tpot_s * 1e3)
    return group
