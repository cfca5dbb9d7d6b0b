"""DistServe's queueing formulas against simulation: prompts of one length, one at a time, on one device or on two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.config.cluster_config import ClusterConfig, ReplicaGroupConfig, RouterConfig
from kvist.costmodel.linear_step_time import LinearStepTime
from kvist.metrics.percentiles import mean
from kvist.planner.operating_point import ttfts_s
from kvist.planner.queueing import ttft_one_device_s, ttft_two_ranks_s, ttft_two_stages_s
from kvist.repro.row import ReproRow
from kvist.simulator.cluster_simulation import simulate
from kvist.workload.arrival_process import Gamma
from kvist.workload.length_distribution import Uniform
from kvist.workload.single_turn import Lengths, SingleTurn

PROMPT_TOKENS, DURATION_S, SPEED_UP = 512, 0.1, 1.6
RATES = (3.0, 6.0, 8.0)  # per second: utilizations of one device
NUM_REQUESTS, QUICK_REQUESTS = 20_000, 1_500
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueingCase:
    """num_stages, speed_up: of the replica; formula: of rate and duration."""

    name: str
    num_stages: int
    speed_up: float
    formula: Callable[[float, float], float]


CASES = (
    QueueingCase(name="one GPU", num_stages=1, speed_up=1.0, formula=ttft_one_device_s),
    QueueingCase(name="two stages", num_stages=2, speed_up=1.0, formula=ttft_two_stages_s),
    QueueingCase(
        name=f"two ranks, K = {SPEED_UP}",
        num_stages=1,
        speed_up=SPEED_UP,
        formula=lambda rate, duration: ttft_two_ranks_s(rate, duration, SPEED_UP),
    ),
)


def queueing_rows(*, is_quick: bool) -> list[ReproRow]:
    num_requests = QUICK_REQUESTS if is_quick else NUM_REQUESTS
    return [
        ReproRow(
            name=f"mean TTFT, {case.name}, {rate:g} requests/s",
            setup=f"prompts of {DURATION_S * 1e3:g} ms, one at a time; baseline: the formula",
            measured=simulated_ttft_s(case, rate, num_requests) * 1e3,
            baseline=case.formula(rate, DURATION_S) * 1e3,
            unit="ms",
            published="the formula",
            why=f"{num_requests:,} prompts: what is left is the sample's",
        )
        for case in CASES
        for rate in RATES
    ]


def simulated_ttft_s(case: QueueingCase, rate_per_s: float, num_requests: int) -> float:
    """Mean time to the only token of each prompt."""
    lengths = Lengths(1.0, Uniform(PROMPT_TOKENS, PROMPT_TOKENS), Uniform(1, 1))
    records = SingleTurn(num_requests, Gamma(rate_per_s), (lengths,)).records(SEED, "queueing", 1.0)
    group = ReplicaGroupConfig(
        tensor_parallel_size=1,
        pipeline_parallel_size=case.num_stages,
        kv_cache_tokens=PROMPT_TOKENS * 512,
        policy="prefill_first",
        max_num_batched_tokens=PROMPT_TOKENS,
        max_num_seqs=case.num_stages,
    )
    config = ClusterConfig(groups=(group,), router=RouterConfig(policy="round_robin"))
    per_token_s = DURATION_S / case.speed_up / PROMPT_TOKENS
    return mean(ttfts_s(simulate(config, records, LinearStepTime(per_token_s=per_token_s))))
