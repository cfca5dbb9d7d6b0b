"""slo_budget against fixed chunks in real time, on each frozen load at its share of SHARES: a run of some seconds.

All variants run once on every load before any comes again, another one first each time. Each load's rate is that of its
capacity here, measured before. The verdict: attainment is no lower than that of the best fixed chunk minus the spread
of both; on `changing` goodput is at least GOODPUT_RATIO times that of the best fixed chunk.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvist.bench.loaded_model import LoadedModel, load_model
from kvist.bench.policy_comparison import COMPARED, compare_policies, measure_capacity
from kvist.bench.policy_engines import RealPolicyEngine, Variant
from kvist.bench.unloaded_latency import levels_of, targets_of
from kvist.config.engine_config import EngineConfig
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.metrics.unloaded_latency import UnloadedLatency
from kvist.repro.radix import tight_pool_tokens
from kvist.weights.fetch import resolve_model
from kvist.workload.load_file import Load, ServiceLevel, frozen_loads
from kvist.workload.shortening import shortened
from kvist.workload.trace_record import TraceRecord

SHARES = {  # of requests, sessions or roots; of `changing`, of its seconds
    "fixed_32": 0.5, "fixed_16": 0.75, "shared_system_32": 0.5, "chat": 0.06, "chat_multi_turn": 0.12,
    "chat_multi_turn_tight": 0.12, "long_and_short": 0.06, "long_offline": 0.15, "few_shot": 0.5, "retrieval": 0.08,
    "tree_of_thought": 0.2, "agent": 0.2, "parallel_samples": 0.34, "changing": 0.25,
}  # fmt: skip
CHUNKS = (64, 256, 1024)
OURS = Variant("slo_budget", max(CHUNKS))
VARIANTS = (*(Variant("chunked_prefill", size) for size in CHUNKS), OURS)
MAX_TOKENS = 8192  # of a request
UNLOADED_TOKENS = 2048  # up to which unloaded latency is measured
NUM_BLOCKS = 8000
CAPACITY_DRAFT = 2.0  # requests per second of the load that capacity is measured with
GOODPUT_LOAD, GOODPUT_RATIO = "changing", 1.15
ATTAINMENT, GOODPUT = "slo_attainment", "request_goodput"
Result = dict[str, Any]  # Any: what JSON holds


@dataclass(slots=True)
class RatedLoad:
    """A load with its capacity, and what was measured: of each repeat, the figures of each variant."""

    load: Load
    share: float
    engine: RealPolicyEngine
    capacity_per_s: float
    records: Sequence[TraceRecord]
    equal_outputs: bool = True
    repeats: list[Result] = field(default_factory=list)


def service_level() -> ServiceLevel:
    level = frozen_loads().service_level
    assert level is not None
    return level


def measure_loads(names: Sequence[str], num_repeats: int, max_s: float) -> Result:
    """Results by load and share, each with its verdict. names: none for all. No load begins after `max_s` seconds."""
    begun_s = time.monotonic()
    loads = [frozen_loads().load(name) for name in names or SHARES]
    model_config = ModelConfig(max_model_len=MAX_TOKENS)
    scheduler = SchedulerConfig(max_num_batched_tokens=max(CHUNKS), max_num_seqs=64)
    path = resolve_model(model_config.model)
    model = load_model(EngineConfig(model=model_config, scheduler=scheduler), path, num_blocks=NUM_BLOCKS)
    try:
        say("measuring what requests take alone, and capacities")
        roomy = RealPolicyEngine(model, scheduler, num_blocks=NUM_BLOCKS)
        unloaded = roomy.unloaded(max_tokens=UNLOADED_TOKENS)
        rated = [_rated(roomy, model, shortened(load, SHARES[load.name])) for load in loads]
        for repeat in range(num_repeats):
            for one in rated:
                if time.monotonic() - begun_s < max_s:
                    _measure(one, unloaded, repeat)
    finally:
        model.close()
    done = {f"{one.load.name}, {one.share:g} of it": _result(one, unloaded) for one in rated if one.repeats}
    for name, result in done.items():
        print(f"{name}: {result['verdict']['text']}", flush=True)
    return done


def _rated(roomy: RealPolicyEngine, model: LoadedModel, load: Load) -> RatedLoad:
    """The load at its rate, on an engine with its pool."""
    draft = load.records(capacity_per_s=CAPACITY_DRAFT)
    engine = roomy
    if load.kv_cache_tokens_fraction is not None:
        engine = roomy.with_blocks(tight_pool_tokens(draft, load.kv_cache_tokens_fraction) // model.block_size + 2)
    capacity = measure_capacity(engine, draft, 512)
    return RatedLoad(load, SHARES[load.name], engine, capacity, load.records(capacity_per_s=capacity))


def _measure(one: RatedLoad, unloaded: UnloadedLatency, repeat: int) -> None:
    first = repeat % len(VARIANTS)
    comparison = compare_policies(
        one.engine,
        [*VARIANTS[first:], *VARIANTS[:first]],
        one.records,
        capacity_per_s=one.capacity_per_s,
        targets_of=targets_of(levels_of(service_level()), unloaded),
        num_repeats=1,
        say=lambda what: say(f"{one.load.name}, {what.partition(',')[0]}, round {repeat + 1}"),
    )
    one.equal_outputs &= comparison.equal_outputs
    one.repeats.append(
        {runs.variant.label: {name: runs.results[0][name] for name in COMPARED} for runs in comparison.runs}
    )


def _result(one: RatedLoad, unloaded: UnloadedLatency) -> Result:
    summary = real_summary(one.repeats)
    return {
        "num_requests": len(one.records),
        "capacity_per_s": one.capacity_per_s,
        "unloaded": unloaded.as_document(),
        "equal_outputs": one.equal_outputs,
        "verdict": verdict(summary, num_repeats=len(one.repeats), needs_goodput=one.load.name == GOODPUT_LOAD),
        "summary": summary,
        "repeats": one.repeats,
    }


def real_summary(repeats: Sequence[Result]) -> Result:
    """Medians over the repeats with their range; the best fixed chunk is that of the best median.

    ours_over_best_fixed: of the medians; None where no fixed chunk has any.
    """

    def of(label: str, name: str) -> list[float]:
        return sorted(repeat[label][name] for repeat in repeats)

    summary: Result = {}
    for name in (ATTAINMENT, GOODPUT):
        medians = {label: statistics.median(of(label, name)) for label in repeats[0]}
        best = max((label for label in medians if label != OURS.label), key=lambda label: medians[label])
        summary[name] = {
            **{
                label: {"median": medians[label], "range": [of(label, name)[0], of(label, name)[-1]]}
                for label in medians
            },
            "best_fixed": best,
            "ours_over_best_fixed": medians[OURS.label] / medians[best] if medians[best] else None,
        }
    return summary


def verdict(summary: Result, *, num_repeats: int, needs_goodput: bool) -> Result:
    """Whether the targets are kept, and in a line by how much. A single run has no spread, and so no verdict."""
    figures = summary[ATTAINMENT]
    ours, best = figures[OURS.label], figures[figures["best_fixed"]]
    text = f"attainment {ours['median']:.0%}, best fixed {best['median']:.0%} ({figures['best_fixed']})"
    ratio = summary[GOODPUT]["ours_over_best_fixed"]
    if needs_goodput:
        text += f"; goodput {'without bound' if ratio is None else f'{ratio:.2f}x'}, at least {GOODPUT_RATIO}x"
    if num_repeats < 2:
        return {"is_kept": None, "spread": None, "text": f"one run, no verdict: {text}"}
    spread = max(each["range"][1] - each["range"][0] for each in (ours, best))
    is_kept = ours["median"] >= best["median"] - spread and (
        not needs_goodput or ratio is None or ratio >= GOODPUT_RATIO
    )
    word = "kept" if is_kept else "MISSED"
    return {"is_kept": is_kept, "spread": spread, "text": f"{word}: {text}; spread {spread:.0%}"}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
