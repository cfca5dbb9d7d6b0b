"""Policies on the same load: interleaved repeats, the same arrivals and targets, equal outputs checked."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import msgspec

from kvist.bench.load_run import LoadRun, RequestRun, TargetsOf
from kvist.bench.policy_engines import PolicyEngine, Variant
from kvist.metrics.benchmark_result import ServerChange, benchmark_result
from kvist.metrics.served_request import Outcome, ServedRequest
from kvist.workload.trace_record import TraceRecord

BASELINE = Variant("chunked_prefill", 512)  # whose capacity a load's rate is a share of, at most with this budget
COMPARED = (
    "output_throughput", "request_goodput", "slo_attainment", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms",
    "p99_tpot_ms", "p99_itl_ms", "duration",
)  # fmt: skip

Document = dict[str, Any]  # Any: what JSON holds


@dataclass(frozen=True, slots=True)
class PolicyRuns:
    """All repeats of one variant. results: as `kvist bench serve` writes them."""

    variant: Variant
    results: list[Document]
    inter_token_ms: list[float]
    ttft_ms: list[float]

    def row(self) -> Document:
        """Median, least and most of each compared figure; None where a repeat has none."""
        return {
            "policy": self.variant.policy,
            "token_budget": self.variant.token_budget,
            **{name: _spread([result[name] for result in self.results]) for name in COMPARED},
        }


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    capacity_per_s: float
    runs: list[PolicyRuns]
    equal_outputs: bool


def measure_capacity(engine: PolicyEngine, records: Sequence[TraceRecord], token_budget: int) -> float:
    """Requests per second when all come at once, and follow-ups without a pause."""
    at_once = [msgspec.structs.replace(record, arrival_s=0.0) for record in records]
    variant = replace(BASELINE, token_budget=min(BASELINE.token_budget, token_budget))
    return engine.play(variant, at_once, None).requests_per_s


def compare_policies(
    engine: PolicyEngine,
    variants: Sequence[Variant],
    records: Sequence[TraceRecord],
    *,
    capacity_per_s: float,
    targets_of: TargetsOf,
    num_repeats: int,
    say: Callable[[str], None],
) -> PolicyComparison:
    """Run each variant `num_repeats` times, all of them once before any comes again. say: told what runs."""
    runs: dict[Variant, list[LoadRun]] = {variant: [] for variant in variants}
    for repeat in range(num_repeats):
        for variant in variants:
            say(f"{variant.label}, repeat {repeat + 1} of {num_repeats}")
            runs[variant].append(engine.play(variant, records, targets_of))
    expected = runs[variants[0]][0].outputs
    return PolicyComparison(
        capacity_per_s,
        [_runs_of(variant, repeats) for variant, repeats in runs.items()],
        all(run.outputs == expected for repeats in runs.values() for run in repeats),
    )


def served_requests(run: LoadRun) -> list[ServedRequest]:
    """As a client with a clock of the engine's would have seen them: times count from when each was due."""
    return [_served(list(samples)) for _, samples in groupby(run.requests, key=lambda request: request.index)]


def _served(samples: Sequence[RequestRun]) -> ServedRequest:
    first = samples[0]
    ends = [sample.finished_s for sample in samples if sample.finished_s is not None]
    return ServedRequest(
        index=first.index,
        arrival_s=first.arrival_s,
        sent_s=first.arrival_s,
        finished_s=max(ends),
        outcome=Outcome.COMPLETED,
        num_prompt_tokens=len(first.prompt_token_ids),
        samples=[_deliveries(sample.token_times_s) for sample in samples],
        num_cached_tokens=first.num_cached_tokens,
        targets=first.targets,
    )


def _deliveries(token_times_s: Sequence[float]) -> list[tuple[float, int]]:
    return [(time_s, len(list(tokens))) for time_s, tokens in groupby(token_times_s)]


def _runs_of(variant: Variant, repeats: Sequence[LoadRun]) -> PolicyRuns:
    return PolicyRuns(
        variant,
        [_result(variant, run) for run in repeats],
        [gap * 1e3 for run in repeats for gap in run.inter_token_s()],
        [ttft * 1e3 for run in repeats for ttft in run.ttfts_s()],
    )


def _result(variant: Variant, run: LoadRun) -> Document:
    setup: Mapping[str, Any] = {"policy": variant.policy, "token_budget": variant.token_budget}
    preemptions = sum(request.num_preemptions for request in run.requests)
    server = ServerChange(preemptions=preemptions)
    return benchmark_result(served_requests(run), duration_s=run.elapsed_s, setup=setup, server=server)


def _spread(values: Sequence[float | None]) -> Document | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    return {"median": statistics.median(known), "min": min(known), "max": max(known)}
