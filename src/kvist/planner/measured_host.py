"""A host and its engine as `kvist profile` measured them: what takes the place of a device of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvist.config.cluster_config import ClusterConfig
from kvist.core.device_spec import DeviceSpec
from kvist.costmodel.profile_table import ProfiledEngine, ProfileModel, ProfileTable
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.planner.candidate import GIGA, Candidate, Deployment, cluster_of
from kvist.simulator.placed_cluster import place_cluster

MEMORY_COPY_BYTES_PER_S = 10e9  # between processes of one host, where a plan puts none


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHost:
    """profile: its file, as it was named; candidates and cluster files name it so.

    memory_bytes: that weights, workspace and KV may take together; max_kv_tokens: of a pool beside the largest step
    that was measured.
    """

    profile: str
    table: ProfileTable
    engine: ProfiledEngine
    memory_bytes: int
    max_kv_tokens: int

    def device(self, *, network_gb_per_s: float, price_per_hour: float) -> DeviceSpec:
        """The host as one device, with no peaks: its step times are measured, so nobody asks for them."""
        facts = self.table.machine
        return DeviceSpec(
            name=f"{facts.get('num_cores_granted', 'some')} cores of {facts.get('cpu', 'a CPU')}",
            kind="cpu",
            peak_flop_per_s=(),
            memory_bytes=self.memory_bytes,
            memory_bytes_per_s=0.0,
            link_bytes_per_s=MEMORY_COPY_BYTES_PER_S,
            network_bytes_per_s=network_gb_per_s * GIGA,
            host_bytes_per_s=MEMORY_COPY_BYTES_PER_S,
            price_per_hour=price_per_hour,
            source=f"kvist profile: {self.profile}",
        )


def placed_on_host(
    candidate: Candidate, deployment: Deployment, host: MeasuredHost
) -> tuple[ClusterConfig, dict[str, StepTimeModel]]:
    """The cluster of such hosts, each with one replica, and step times by group. The candidate says the pool's size."""
    engine = host.engine
    config = cluster_of(
        candidate, replace(deployment, model=host.table.model), kv_bytes_per_token=engine.kv_bytes_per_token
    )
    # As the engine does: no request is longer than the pool, or than the model was trained for.
    longest = min(engine.model_spec.max_position, candidate.kv_cache_tokens or engine.model_spec.max_position)
    groups = tuple(replace(group, device=None, max_model_len=longest) for group in config.groups)
    config = replace(config, groups=groups, cache=replace(config.cache, block_size=engine.block_size))
    return place_cluster(config, {group.name: ProfileModel(host.table) for group in groups})
