"""What a cluster does at one rate: latencies, throughput, load factor. Beyond saturation it gives no tails.

Past its capacity a cluster's queue grows for as long as the load lasts: a percentile measured there tells how long the
run was, not how long users wait. Near it a small error of the capacity is a large error of the tail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvist.config.cluster_config import ClusterConfig
from kvist.metrics.percentiles import mean, percentile
from kvist.planner.plan_load import PlanLoad
from kvist.planner.service_level_objective import ServiceLevelObjective
from kvist.planner.trial import StepTimes, watch
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.links import NS_PER_S
from kvist.simulator.simulation_result import SimulatedRequest, SimulationResult

SATURATED = 0.98  # load factor from which tails are not quoted
SUSTAINED_SHARE = 0.97  # of the capacity: below what counts as saturated
MOST = 0.9  # of the requests, after which a capacity is taken
TURNOVER = 2  # requests for each that runs at once, where capacity is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds. p90, p99: None beyond saturation, or of none."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """capacity_per_s: requests per second completed with all of them there at once, or where that is not measured a
    lower bound; load_factor: rate / capacity.

    utilization: by group, the mean share of the time that its replicas compute.
    """

    rate_per_s: float
    capacity_per_s: float
    attainment: float
    ttft: Latency
    tpot: Latency
    utilization: dict[str, float]
    cache_hit_share: float
    num_preemptions: int
    event_digest: str
    is_capacity_measured: bool = True

    @property
    def load_factor(self) -> float:
        return self.rate_per_s / self.capacity_per_s if self.capacity_per_s else math.inf

    @property
    def is_saturated(self) -> bool:
        return self.load_factor >= SATURATED


def operate(
    config: ClusterConfig,
    step_times: StepTimes,
    load: PlanLoad,
    objective: ServiceLevelObjective,
    rate_per_s: float,
    *,
    known_capacity_per_s: float | None = None,
    trusts_objective: bool = False,
) -> OperatingPoint:
    """Simulate the load at the rate and, unless it is known, once with all requests at once for the capacity.

    trusts_objective: where the objective is kept, do without the second run: the capacity is given as just so much that
    the rate is none of saturation.
    """
    judged, result = watch(config, step_times, load.at_rate(rate_per_s), objective, rate_per_s)
    is_measured = not (trusts_objective and judged.holds)
    if known_capacity_per_s is not None:
        capacity = known_capacity_per_s
    else:
        capacity = capacity_per_s(config, step_times, load) if is_measured else rate_per_s / SATURATED * 1.001
    is_saturated = rate_per_s >= SATURATED * capacity
    requests = result.requests
    num_prompt_tokens = sum(request.num_prompt_tokens for request in requests)
    return OperatingPoint(
        rate_per_s=rate_per_s,
        capacity_per_s=capacity,
        attainment=judged.num_good / judged.total,
        ttft=_latency(ttfts_s(result), is_saturated=is_saturated),
        tpot=_latency(tpots_s(result), is_saturated=is_saturated),
        utilization=utilization(result),
        cache_hit_share=sum(request.num_cached_tokens for request in requests) / max(num_prompt_tokens, 1),
        num_preemptions=sum(request.num_preemptions for request in requests),
        event_digest=result.digest(),
        is_capacity_measured=is_measured,
    )


def capacity_per_s(config: ClusterConfig, step_times: StepTimes, load: PlanLoad) -> float:
    """Requests per second completed while all requests wait from the beginning, until most of them are done.

    The last ones are left out: they end in batches that nothing refills. Low rather than high: filling counts, so
    there are several times as many requests as run at once.
    """
    waiting = load.at_once(min_requests=TURNOVER * num_places(config, load))
    most = math.ceil(MOST * len(waiting))
    result = simulate(config, waiting, step_times, stop_rule=_UntilEnded(most))
    ends = sorted(request.finished_ns for request in result.requests if request.finished_ns is not None)
    counted = ends[:most]
    return len(counted) * NS_PER_S / max(counted[-1], 1) if counted else 0.0


class _UntilEnded:
    """A StopRule: so many requests have ended, however."""

    def __init__(self, num_requests: int) -> None:
        self._num_left = num_requests

    def note_ended(self, request: SimulatedRequest) -> None:
        self._num_left -= 1

    @property
    def is_decided(self) -> bool:
        return self._num_left <= 0


def num_places(config: ClusterConfig, load: PlanLoad) -> int:
    """Requests that the cluster decodes at once: as many as may run, or as there is room for."""
    lengths = load.lengths()
    mean_tokens = sum(prompt + output for prompt, output in lengths) / len(lengths)
    return sum(
        group.count * max(1, min(group.max_num_seqs, int((group.kv_cache_tokens or 0) / mean_tokens)))
        for group in config.groups
        if group.decode_weight
    )


def ttfts_s(result: SimulationResult) -> list[float]:
    """Of the requests that gave a token."""
    return [request.ttft_ns / NS_PER_S for request in result.requests if request.ttft_ns is not None]


def tpots_s(result: SimulationResult) -> list[float]:
    """Of the finished requests with two tokens or more."""
    return [
        (request.token_times_ns[-1] - request.token_times_ns[0]) / NS_PER_S / (len(request.token_times_ns) - 1)
        for request in result.requests
        if request.outcome == "finished" and len(request.token_times_ns) > 1
    ]


def utilization(result: SimulationResult) -> dict[str, float]:
    shares: dict[str, list[float]] = {}
    for replica in result.replicas:
        shares.setdefault(replica.group, []).append(replica.busy_ns / max(result.end_ns, 1))
    return {group: mean(values) for group, values in shares.items()}


def _latency(values: Sequence[float], *, is_saturated: bool) -> Latency:
    rising = sorted(values)
    if is_saturated or not rising:
        return Latency(mean=None, p50=None, p90=None, p99=None)
    return Latency(
        mean=mean(rising), p50=percentile(rising, 50), p90=percentile(rising, 90), p99=percentile(rising, 99)
    )
