"""What a comparison of prediction and engine runs: loads, their rates, how often, and the parts that this makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kvist.config.cluster_config import ClusterCacheConfig, ClusterConfig, ReplicaGroupConfig, RouterConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.workload.adapting import num_starts, scale_lengths, take_first
from kvist.workload.load_file import shipped_loads
from kvist.workload.trace_record import TraceRecord, count_prompt_tokens

PROFILE = "profile"  # the name of that part
LOAD_FACTORS = (0.5, 0.7, 0.9, 1.2)
POOL_TOKENS = 32_768
TIGHT_POOL_TOKENS = 1_536
TIGHT_LOAD_FACTORS = (1.2,)
LENGTH_FACTOR = 0.5  # of the loads' prompts and answers: more requests in the same time, so that percentiles mean more
MIN_REQUESTS = 12  # and as many tell how many a run is to have
DEFAULT_LOADS = ("chat", "retrieval")
TIGHT_LOAD = "service_chat"  # its answers vary much in length, so that some outgrow the pool
MAX_NUM_QUEUED = 1_000_000  # nobody is turned away: both sides get the same requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A load over a KV pool of `pool_tokens`, at each load factor (a share of the capacity of this scenario)."""

    name: str
    load: str
    pool_tokens: int
    load_factors: Sequence[float]

    def records(self, count: int) -> list[TraceRecord]:
        """The first `count` requests of the load that fit the pool, at its own rate for one request per second."""
        load = shipped_loads().load(self.load)
        records = scale_lengths(load.records(capacity_per_s=1.0), LENGTH_FACTOR)
        if num_starts(records) < len(records):
            return take_first(records, count)  # who follows another cannot be left without it
        lengths = zip(count_prompt_tokens(records), records, strict=True)
        fitting = [record for prompt, record in lengths if prompt + record.num_output_tokens <= self.pool_tokens]
        return [msgspec.structs.replace(record, index=place) for place, record in enumerate(fitting[:count])]


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelitySetting:
    """scheduler: must name its token budget. seconds: of a run at full capacity.

    profile_s: of the profile. retries: how often a part that was disturbed is done again. is_quick: fewer steps in a
    profile.
    """

    scenarios: Sequence[Scenario]
    scheduler: SchedulerConfig
    repeats: int
    seconds: float
    profile_s: float
    is_quick: bool = False
    retries: int = 0

    @property
    def parts(self) -> list[str]:
        """Names of all parts in their order. Each repeat has a capacity of its own, measured just before its loads."""
        return [
            PROFILE,
            *(
                run_name(scenario.name, factor, repeat)
                for repeat in range(1, self.repeats + 1)
                for scenario in self.scenarios
                for factor in (None, *scenario.load_factors)
            ),
        ]

    def num_requests(self, scenario: Scenario, capacity_per_s: float) -> int:
        """As many as take about `seconds` at full capacity."""
        return max(MIN_REQUESTS, math.ceil(capacity_per_s * self.seconds))


def run_name(scenario: str, load_factor: float | None, repeat: int) -> str:
    """load_factor: None of the run that measures the capacity."""
    return f"{scenario}/{'capacity' if load_factor is None else f'{load_factor:g}'}/{repeat}"


def scenarios(loads: Sequence[str], load_factors: Sequence[float], *, has_tight_pool: bool) -> list[Scenario]:
    """Each load over the usual pool; and, to see preemptions, one over a pool that is too small for it."""
    listed = [Scenario(name=load, load=load, pool_tokens=POOL_TOKENS, load_factors=load_factors) for load in loads]
    if has_tight_pool:
        listed.append(
            Scenario(
                name=f"{TIGHT_LOAD}, small pool",
                load=TIGHT_LOAD,
                pool_tokens=TIGHT_POOL_TOKENS,
                load_factors=TIGHT_LOAD_FACTORS,
            )
        )
    return listed


def simulated_cluster(
    scenario: Scenario, scheduler: SchedulerConfig, *, block_size: int, max_model_len: int
) -> ClusterConfig:
    """One replica with the engine's scheduler and pool: what `kvist simulate` takes the engine for."""
    group = ReplicaGroupConfig(
        name="engine",
        kv_cache_tokens=scenario.pool_tokens,
        policy=scheduler.policy,
        queue_order=scheduler.queue_order,
        max_num_batched_tokens=scheduler.max_num_batched_tokens or 0,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=max_model_len,
    )
    return ClusterConfig(
        groups=(group,), cache=ClusterCacheConfig(block_size=block_size), router=RouterConfig(policy="round_robin")
    )
