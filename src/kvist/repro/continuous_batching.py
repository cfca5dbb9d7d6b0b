"""Iteration-level batching (Orca, OSDI'22): requests join and leave between steps, against padded static batches."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from kvist.bench.load_run import LoadRun, percentile
from kvist.config.scheduler_config import SchedulerConfig
from kvist.repro.measured_engine import MAX_NUM_SEQS, MeasuredEngine, at_once, by_cpu_time, spread_of_ratio
from kvist.repro.result import BarPlot, ReproResult
from kvist.repro.row import ReproRow
from kvist.repro.setting import ReproSetting
from kvist.repro.static_batches import (
    QUICK_SIZES,
    SIZES,
    STATIC_TOKEN_BUDGET,
    StaticSetting,
    best_static,
    play_static,
)
from kvist.workload.trace_record import TraceRecord

QUICK: Mapping[str, Mapping[str, int]] = {"long_offline": {"num_requests": 8}, "chat": {"num_requests": 10}}
LEAST = 24  # requests, outside of quick runs
POOL_TOKENS = 65_536
ORCA = SchedulerConfig(policy="prefill_first", max_num_batched_tokens=STATIC_TOKEN_BUDGET, max_num_seqs=MAX_NUM_SEQS)
RATED = 0.7


def run(setting: ReproSetting) -> ReproResult:
    rows: list[ReproRow] = []
    bars: dict[str, list[float]] = {"static, best size": [], "iteration-level": []}
    with MeasuredEngine(setting, num_kv_tokens=POOL_TOKENS, max_num_batched_tokens=STATIC_TOKEN_BUDGET) as engine:
        for name, quick in QUICK.items():
            load = setting.load(name, quick, least=LEAST)
            records = at_once(load.records(capacity_per_s=1.0))
            sizes = QUICK_SIZES if setting.is_quick else SIZES
            best, first = best_static(engine, name, records, sizes)
            padded, flowing = [first], [_play(engine, name, records)]
            for _ in range(setting.repeats - 1):
                padded.append(play_static(engine, name, records, best))
                flowing.append(_play(engine, name, records))
            rows += _rows(name, best, sizes, padded, flowing)
            for bar, runs in zip(bars.values(), (padded, flowing), strict=True):
                bar.append(statistics.median(each.output_tokens_per_s for each in runs))
            if not setting.is_quick and name == "chat":
                capacity_per_s = max(each.requests_per_s for each in padded)
                rows.append(_rated_row(engine, name, best, load.records(capacity_per_s=capacity_per_s)))
    return engine.result(
        "continuous-batching",
        "Orca: iteration-level batching",
        setup=(
            f"All requests at once, greedy, no prefix cache. Iteration-level: prefill_first, at most {MAX_NUM_SEQS}"
            " requests. Baseline: padded static batches, first come first served, of the size that is fastest here."
        ),
        rows=rows,
        plots=[BarPlot(title="Throughput", unit="output tokens/s", groups=list(QUICK), values=bars)],
        notes=[NOTE],
    )


def _play(engine: MeasuredEngine, name: str, records: Sequence[TraceRecord]) -> LoadRun:
    kv_cache = engine.model.new_cache(enable_prefix_caching=False)
    return engine.play(f"{name}, iteration-level", records, scheduler=ORCA, kv_cache=kv_cache)


def _rows(
    name: str, best: StaticSetting, sizes: Sequence[int], padded: Sequence[LoadRun], flowing: Sequence[LoadRun]
) -> list[ReproRow]:
    rates = [each.output_tokens_per_s for each in flowing], [each.output_tokens_per_s for each in padded]
    is_first = name == "long_offline"
    return [
        ReproRow(
            name=f"{name}: throughput",
            unit="output tokens/s",
            measured=statistics.median(rates[0]),
            baseline=statistics.median(rates[1]),
            spread=spread_of_ratio(*rates),
            published="36.9x at equal latency" if is_first else None,
            brief="raises it, no figure" if is_first else None,
            setup=f"{len(padded[0].requests)} requests, {by_cpu_time(flowing, padded)}; baseline {best}, the best of"
            f" {', '.join(map(str, sizes))}",
            equal_output=all(each.outputs == padded[0].outputs for each in (*padded, *flowing)),
            why="the published figure is GPT-3 175B on many GPUs, where a step of one decode costs as much as of many"
            if is_first
            else "",
        ),
        ReproRow(
            name=f"{name}: tokens computed for nothing",
            unit="%",
            measured=flowing[0].padding_share,
            baseline=padded[0].padding_share,
            is_change=True,
            setup="padding of prompts, and of decodes whose request is done, as a share of all computed tokens",
        ),
        ReproRow(
            name=f"{name}: time to the last token, median",
            unit="s",
            measured=_median_end_s(flowing[0]),
            baseline=_median_end_s(padded[0]),
            is_change=True,
            setup="all requests arrive at once",
        ),
    ]


def _rated_row(engine: MeasuredEngine, name: str, best: StaticSetting, records: Sequence[TraceRecord]) -> ReproRow:
    padded, flowing = play_static(engine, f"{name} at its rate", records, best), _play(engine, name, records)
    return ReproRow(
        name=f"{name}: time to the first token, median",
        unit="s",
        measured=percentile(flowing.ttfts_s(), 50),
        baseline=percentile(padded.ttfts_s(), 50),
        is_change=True,
        setup=f"arrivals at {RATED} of the capacity of {best}, one run",
        why="a request that comes waits for a whole batch to end",
    )


def _median_end_s(run: LoadRun) -> float:
    return percentile([request.finished_s for request in run.requests if request.finished_s is not None], 50)


NOTE = (
    "On a CPU a decode step of one request is already bound by memory and a step of 32 by arithmetic, so a batch gains "
    "a few times, not tens: what iteration-level batching can win is bounded by that and by the padding it avoids."
)
