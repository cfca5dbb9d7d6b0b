"""The cluster of Mooncake's paper as it is simulated here: LLaMA3-70B on hosts of 8 A800.

Step times follow the paper's count of operations (FAST'25): 118 GFLOP a token and 2.6 MFLOP a pair of query and key, at
half of the 8 x 312 TFLOP/s; decodes read 320 KiB a key at 70% of 8 x 2.0 TB/s, after 20 ms for weights and host.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvist.config.cluster_config import ClusterCacheConfig, ClusterConfig, LinksConfig, ReplicaGroupConfig, RouterConfig
from kvist.costmodel.linear_step_time import LinearStepTime

STEP_TIME = LinearStepTime(per_step_s=0.02, per_token_s=9.4e-5, per_decode_key_s=3e-8, per_prefill_pair_s=2.1e-9)


def _group(name: str, count: int, **fields: Any) -> ReplicaGroupConfig:  # Any: the group's own numbers
    return ReplicaGroupConfig(name=name, count=count, tensor_parallel_size=8, max_model_len=200_000, **fields)


def mooncake_cluster(num_prefill: int, num_decode: int, router: str) -> ClusterConfig:
    """Hosts for prefill with 3M tokens of KV each, and for decode with what the devices hold."""
    return ClusterConfig(
        groups=(
            _group("prefill", num_prefill, decode_weight=0.0, kv_cache_tokens=3_000_000),
            _group("decode", num_decode, prefill_weight=0.0, kv_cache_tokens=1_300_000),
        ),
        cache=ClusterCacheConfig(block_size=512, kv_bytes_per_token=327_680),
        links=LinksConfig(inter_node_gb_per_s=100.0, host_gb_per_s=200.0),
        router=RouterConfig(policy=router),
    )


def vllm_cluster(num_hosts: int) -> ClusterConfig:
    """The paper's baseline on the same hosts: each does both phases, whole prompts first, and keeps no prefixes."""
    group = _group("mixed", num_hosts, kv_cache_tokens=1_300_000, policy="prefill_first", enable_prefix_caching=False)
    config = mooncake_cluster(1, 1, "least_loaded")
    return replace(config, groups=(group,))
