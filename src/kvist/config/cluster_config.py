"""What a cluster is made of: groups of replicas, the links between them, and how requests are routed."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.config.option import option
from kvist.config.scheduler_config import POLICIES, QUEUE_ORDERS

ROUTERS = ("random", "round_robin", "least_loaded", "power_of_two", "cache_aware", "session_affinity", "kv_centric")
REJECTIONS = ("none", "at_decode", "early", "predicted")
KV_BYTES_PER_TOKEN = 131_072  # of Llama-3.1-8B in 16 bits, where nothing else is said
LINK_SHARINGS = ("fair", "fifo")
ATTENTIONS = ("flash", "materialized")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroupConfig:
    """`count` equal replicas. Weights say how large a share of each phase a replica gets; 0: none of it."""

    name: str = option("replica", help="name of the group, in results")
    count: int = option(1, help="replicas in the group", low=1, high=4096)
    prefill_weight: float = option(1.0, help="share of the prompts that a replica gets; 0: it never prefills", low=0.0)
    decode_weight: float = option(1.0, help="share of the outputs that a replica gets; 0: it never decodes", low=0.0)
    model: str | None = option(None, help="what it serves, for step times by prediction, such as llama-3.1-70b")
    device: str | None = option(None, help="what it runs on, for step times by prediction, such as H100-80GB-SXM")
    dtype: str = option("bf16", help="number format of the weights, for step times by prediction")
    kv_cache_dtype: str | None = option(
        None, help="number format of keys and values, for step times by prediction; default: as the engine keeps them"
    )
    engine: str | None = option(
        None, help="engine and version whose measured efficiency predicts step times; default: vLLM of 2025"
    )
    kv_cache_tokens: int | None = option(
        None,
        help="tokens that a replica's KV pool holds; default: what its devices have room for",
        low=32,
        high=2**30,
        unit="tokens",
    )
    host_cache_tokens: int = option(0, help="tokens of evicted KV that its host memory keeps", low=0, unit="tokens")
    disk_cache_tokens: int = option(0, help="tokens of evicted KV that its disk keeps", low=0, unit="tokens")
    tensor_parallel_size: int = option(1, help="devices that share each operation", low=1, high=1024)
    pipeline_parallel_size: int = option(1, help="stages of layers; as many steps are in flight", low=1, high=1024)
    policy: str = option("chunked_prefill", help="how a step's token budget is filled", choices=POLICIES)
    queue_order: str = option("auto", help="order of the waiting queue", choices=QUEUE_ORDERS)
    max_num_batched_tokens: int = option(8192, help="token budget of a step", low=16, unit="tokens")
    max_num_seqs: int = option(256, help="most requests running at once", low=1)
    max_model_len: int = option(131_072, help="longest prompt and output together", low=32, unit="tokens")
    enable_prefix_caching: bool = option(True, help="reuse KV of shared prefixes")
    default_ttft_ms: float | None = option(
        None, help="slo_budget: time to first token that steps are cut for; default: none", low=1, unit="ms"
    )
    default_tpot_ms: float = option(
        100.0, help="slo_budget: mean time between tokens that steps are cut for", low=1, unit="ms"
    )
    attention: str = option(
        "flash",
        help="flash: tiles that never leave the chip; materialized: all scores written out, for comparison",
        choices=ATTENTIONS,
    )
    num_kv_heads: int | None = option(None, help="heads of K and V, to compare with; default: the model's own", low=1)
    start_delay_s: float = option(
        0.0, help="time from a start, or a restart, to the first step", low=0.0, high=1e8, unit="s"
    )

    @property
    def num_devices(self) -> int:
        """Devices of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksConfig:
    """Bandwidths in GB/s (1e9 bytes), each direction, and how transfers share a link."""

    devices_per_node: int = option(8, help="devices of one host; replicas fill hosts in order", low=1)
    intra_node_gb_per_s: float = option(200.0, help="between replicas of one host", low=1e-6)
    inter_node_gb_per_s: float = option(50.0, help="of one host's network", low=1e-6)
    host_gb_per_s: float = option(25.0, help="between a device and its host's memory", low=1e-6)
    disk_gb_per_s: float = option(3.0, help="of one replica's disk", low=1e-6)
    latency_s: float = option(0.0, help="from the start of a transfer to its first byte", low=0.0, unit="s")
    sharing: str = option(
        "fair", help="fair: transfers split a link evenly; fifo: one after another", choices=LINK_SHARINGS
    )
    streams_kv: bool = option(
        True, help="send KV to the decoding replica while the prompt is still computed; false: when it is done"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Which replica gets a request, and whether any does."""

    policy: str = option("kv_centric", help="how a replica is chosen for the prompt", choices=ROUTERS)
    seed: int = option(0, help="of the policies that draw")
    balancing_threshold: float = option(
        1.5, help="fetch KV only where the best replica holds so many times more of the prompt (Mooncake)", low=1.0
    )
    ttft_slo_s: float | None = option(None, help="target of the time to first token", low=0.0, unit="s")
    tpot_slo_s: float | None = option(None, help="target of the time per output token", low=0.0, unit="s")
    rejection: str = option("none", help="when a request that would miss its target is refused", choices=REJECTIONS)
    max_queue_s: float | None = option(
        None,
        help="hold requests back, fairly by tenant, while all replicas have so much queued",
        low=0.0,
        unit="s",
    )
    role_interval_s: float | None = option(
        None, help="how often a replica may change its role to follow the load; default: never", low=0.001, unit="s"
    )
    migration_interval_s: float | None = option(
        None,
        help="how often decodes may move, from replicas that take no more outputs or are short of memory; "
        "default: never",
        low=0.001,
        unit="s",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureConfig:
    """One replica stops: its requests and its KV are lost; it comes back empty after `down_s`, and its start delay."""

    replica: int = option(0, help="number of the replica, counted over all groups", low=0)
    at_s: float = option(0.0, help="when it stops", low=0.0, high=1e8, unit="s")
    down_s: float | None = option(None, help="how long it is away; default: for good", low=0.0, high=1e8, unit="s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCacheConfig:
    """KV that all replicas agree on, and the store beside them."""

    block_size: int = option(16, help="tokens per KV block; a multiple of 16", low=16)
    kv_bytes_per_token: int | None = option(
        None, help="K and V of one token in all layers; default: as the model says, or 131072", low=1, unit="bytes"
    )
    shared_pool_tokens: int = option(
        0, help="tokens of KV in a store beside the replicas, over the hosts' network", low=0, unit="tokens"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """A whole cluster. Replicas are numbered over all groups, in order."""

    groups: tuple[ReplicaGroupConfig, ...]
    cache: ClusterCacheConfig = ClusterCacheConfig()
    links: LinksConfig = LinksConfig()
    router: RouterConfig = RouterConfig()
    failures: tuple[FailureConfig, ...] = ()
    check_invariants: bool = False

    @property
    def num_replicas(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def num_devices(self) -> int:
        return sum(group.count * group.num_devices for group in self.groups)
