"""What a simulated cluster is built of: the specs of its replicas, and its global scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvist.cluster.cluster_state import ReplicaState
from kvist.cluster.global_scheduler import GlobalScheduler
from kvist.cluster.predictions import Predictor
from kvist.cluster.replica_handle import ReplicaSpec
from kvist.cluster.tier_index import TierIndex, TierSizes
from kvist.config.cluster_config import ClusterConfig, ReplicaGroupConfig
from kvist.core.errors import ConfigError
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.simulator.topology import Topology

StepTimeModels = StepTimeModel | Mapping[str, StepTimeModel]


def replica_specs(config: ClusterConfig, topology: Topology, step_time: StepTimeModels) -> list[ReplicaSpec]:
    """Of all replicas in order, group by group. Raises ConfigError for a group without step times."""
    specs: list[ReplicaSpec] = []
    for group in config.groups:
        if isinstance(step_time, Mapping):
            if group.name not in step_time:
                raise ConfigError(f"no step times for the replicas {group.name!r}; there are {', '.join(step_time)}")
            model: StepTimeModel = step_time[group.name]
        else:
            model = step_time
        for _ in range(group.count):
            specs.append(
                ReplicaSpec(
                    replica_id=len(specs),
                    node=topology.nodes[len(specs)],
                    kv_cache_tokens=group.kv_cache_tokens or 0,
                    max_num_batched_tokens=group.max_num_batched_tokens,
                    max_num_seqs=group.max_num_seqs,
                    num_stages=group.pipeline_parallel_size,
                    step_time=model,
                )
            )
    return specs


def new_router(
    config: ClusterConfig,
    kv_bytes_per_token: int,
    specs: Sequence[ReplicaSpec],
    groups: Sequence[ReplicaGroupConfig],
) -> GlobalScheduler:
    """groups: of each replica."""
    block_size = config.cache.block_size
    return GlobalScheduler(
        config.router,
        [
            ReplicaState(spec, group.prefill_weight, group.decode_weight)
            for spec, group in zip(specs, groups, strict=True)
        ],
        TierIndex(
            [
                TierSizes(
                    host_blocks=group.host_cache_tokens // block_size, disk_blocks=group.disk_cache_tokens // block_size
                )
                for group in groups
            ],
            shared_blocks=config.cache.shared_pool_tokens // block_size,
        ),
        Predictor(config.links, kv_bytes_per_token),
        block_size,
    )
