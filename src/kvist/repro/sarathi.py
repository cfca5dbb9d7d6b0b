"""SARATHI (2023) and Sarathi-Serve (OSDI'24): prompts in chunks, decodes riding along.

Offline: padded static batches, whole prompts first, and chunks, on ragged prompts. Online: the time between tokens of
running requests while long prompts arrive. And one hybrid step beside a chunk and decodes alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvist.bench.load_run import LoadRun, OnStep, percentile
from kvist.bench.step_timer import StepTimer
from kvist.config.scheduler_config import SchedulerConfig
from kvist.metrics.step_record import OperationTime
from kvist.repro.best_rates import (
    BestRates,
    StepTimes,
    best_rates,
    shortest,
    step_utilization,
    time_steps,
    utilization_of,
)
from kvist.repro.lost_time import LostTime, OperationLog, lost_time
from kvist.repro.measured_engine import MAX_NUM_SEQS, MeasuredEngine, at_once, by_cpu_time, spread_of_ratio
from kvist.repro.quick_loads import QUICK_LONG_AND_SHORT
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
from kvist.runtime.real_clock import RealClock
from kvist.workload.load_file import Load
from kvist.workload.trace_record import TraceRecord

QUICK: Mapping[str, Mapping[str, Any]] = {
    "long_offline": {"num_requests": 6},
    "long_and_short": QUICK_LONG_AND_SHORT,
}
LEAST = {"long_offline": 40, "long_and_short": 24}  # requests, outside of quick runs
POOL_TOKENS = 65_536
CHUNK = 1024  # tokens a step where throughput counts
HYBRID_CHUNK = 512  # of the step that decodes ride along with
SMALL_CHUNK = 128  # where the time between tokens counts
STALL_S = 0.2  # between two tokens: what a reader notices
RATED = 0.8
PREFILL_FIRST = SchedulerConfig(
    policy="prefill_first", max_num_batched_tokens=STATIC_TOKEN_BUDGET, max_num_seqs=MAX_NUM_SEQS
)
CHUNKED = SchedulerConfig(policy="chunked_prefill", max_num_batched_tokens=CHUNK, max_num_seqs=MAX_NUM_SEQS)
SMALL_CHUNKED = SchedulerConfig(policy="chunked_prefill", max_num_batched_tokens=SMALL_CHUNK, max_num_seqs=MAX_NUM_SEQS)
NUM_RIDERS, RIDER_CONTEXT, HYBRID_ROUNDS = 3, 1024, 8
RATE_ROUNDS, QUICK_RATE_ROUNDS, BESIDE_ROUNDS = 6, 3, 2


@dataclass(slots=True)
class Offline:
    """Runs of long_offline, one per repeat. operations: of each step of the first chunked run. beside: single steps
    timed right before and after that run.
    """

    best: StaticSetting
    sizes: Sequence[int]  # that it is the best of
    static: list[LoadRun]
    whole: list[LoadRun]
    chunked: list[LoadRun]
    operations: list[Sequence[OperationTime]]
    beside: list[StepTimes]


def run(setting: ReproSetting) -> ReproResult:
    loads = {name: setting.load(name, quick, least=LEAST[name]) for name, quick in QUICK.items()}
    with MeasuredEngine(setting, num_kv_tokens=POOL_TOKENS, max_num_batched_tokens=STATIC_TOKEN_BUDGET) as engine:
        timer = StepTimer(engine.model.executor, RealClock(), block_size=engine.model.block_size)
        setting.say("single steps")
        hybrid = _hybrid_row(timer)
        rounds = QUICK_RATE_ROUNDS if setting.is_quick else RATE_ROUNDS
        times = [time_steps(timer, max_num_tokens=STATIC_TOKEN_BUDGET, rounds=rounds)]
        offline = _offline(engine, setting, loads["long_offline"], timer)
        setting.say("single steps, again")
        times.append(time_steps(timer, max_num_tokens=STATIC_TOKEN_BUDGET, rounds=rounds))
        rates = best_rates(shortest([*times, *offline.beside]), max_num_tokens=STATIC_TOKEN_BUDGET)
        rows = [*_offline_rows(offline, rates), *_online_rows(engine, loads["long_and_short"]), hybrid]
    rates_of = {
        "static": offline.static,
        "prefill_first": offline.whole,
        "chunked_prefill": offline.chunked,
    }
    return engine.result(
        "sarathi",
        "SARATHI: chunked prefill with decodes along",
        setup=(
            f"At most {MAX_NUM_SEQS} requests at once, greedy, no prefix cache. chunked_prefill with {CHUNK} tokens a"
            f" step, {SMALL_CHUNK} where the time between tokens is measured; prefill_first computes prompts whole."
        ),
        rows=rows,
        plots=[
            BarPlot(
                title="long_offline: utilization",
                unit="share of time at best rates",
                groups=list(rates_of),
                values={"utilization": [utilization_of(rates, runs[0]) for runs in rates_of.values()]},
            ),
            BarPlot(
                title="long_offline: throughput",
                unit="output tokens/s",
                groups=list(rates_of),
                values={
                    "throughput": [
                        statistics.median(run.output_tokens_per_s for run in runs) for runs in rates_of.values()
                    ]
                },
            ),
        ],
        notes=[NOTE_ON_UTILIZATION, NOTE_ON_BRIEF],
    )


def _play(
    engine: MeasuredEngine,
    what: str,
    records: Sequence[TraceRecord],
    scheduler: SchedulerConfig,
    on_step: OnStep | None = None,
) -> LoadRun:
    kv_cache = engine.model.new_cache(enable_prefix_caching=False)
    return engine.play(what, records, scheduler=scheduler, kv_cache=kv_cache, on_step=on_step)


def _offline(engine: MeasuredEngine, setting: ReproSetting, load: Load, timer: StepTimer) -> Offline:
    records = at_once(load.records(capacity_per_s=1.0))
    sizes = QUICK_SIZES[:1] if setting.is_quick else SIZES
    best, first = best_static(engine, load.name, records, sizes)
    runs = Offline(best, sizes, [first], [], [], [], [])
    for repeat in range(setting.repeats):
        if repeat:
            runs.static.append(play_static(engine, load.name, records, best))
        runs.whole.append(_play(engine, f"{load.name}, prefill_first", records, PREFILL_FIRST))
        what = f"{load.name}, chunked_prefill"
        if repeat:
            runs.chunked.append(_play(engine, what, records, CHUNKED))
            continue
        runs.beside.append(time_steps(timer, max_num_tokens=STATIC_TOKEN_BUDGET, rounds=BESIDE_ROUNDS))
        log = OperationLog(engine.model.executor)
        runs.chunked.append(_play(engine, what, records, CHUNKED, log))
        runs.operations = log.steps
        runs.beside.append(time_steps(timer, max_num_tokens=STATIC_TOKEN_BUDGET, rounds=BESIDE_ROUNDS))
    return runs


def _offline_rows(runs: Offline, rates: BestRates) -> list[ReproRow]:
    speeds = {
        kind: [run.output_tokens_per_s for run in each]
        for kind, each in (("static", runs.static), ("whole", runs.whole), ("chunked", runs.chunked))
    }
    static, chunked = runs.static[0], runs.chunked[0]
    equal = all(run.outputs == static.outputs for run in (*runs.static, *runs.whole, *runs.chunked))
    return [
        ReproRow(
            name="long_offline: throughput",
            unit="output tokens/s",
            measured=statistics.median(speeds["chunked"]),
            baseline=statistics.median(speeds["static"]),
            spread=spread_of_ratio(speeds["chunked"], speeds["static"]),
            published="1.91x (GPT-3, pipeline parallel, simulated); 1.25-1.33x on one GPU",
            brief="1.9x, +90%",
            setup=f"{len(static.requests)} requests at once, {by_cpu_time(runs.chunked, runs.static)}; baseline"
            f" {runs.best}, the fastest of {', '.join(map(str, runs.sizes))}",
            equal_output=equal,
            why="no pipeline bubbles here: what is gained is padding and steps of few decodes",
        ),
        ReproRow(
            name="long_offline: throughput over whole prompts",
            unit="output tokens/s",
            measured=statistics.median(speeds["chunked"]),
            baseline=statistics.median(speeds["whole"]),
            spread=spread_of_ratio(speeds["chunked"], speeds["whole"]),
            setup=f"{by_cpu_time(runs.chunked, runs.whole)}; baseline prefill_first: iteration-level, without chunks",
        ),
        ReproRow(
            name="long_offline: tokens computed for nothing",
            unit="%",
            measured=chunked.padding_share,
            baseline=static.padding_share,
            is_change=True,
            brief="less, no figure",
            setup="padding as a share of all computed tokens",
        ),
        ReproRow(
            name="long_offline: utilization at saturation",
            unit="%",
            measured=utilization_of(rates, chunked, while_prompts_wait=True),
            baseline=utilization_of(rates, static, while_prompts_wait=True),
            published="not stated",
            brief="45% -> 85%",
            setup="needed work at best rates over time, until the last prompt is computed; with the last decodes"
            f" {utilization_of(rates, static):.1%} -> {utilization_of(rates, chunked):.1%}",
            why=_needs(rates, chunked),
        ),
        _lost_row(rates, runs),
        ReproRow(
            name="long_offline: mean time to the last token",
            unit="s",
            measured=_mean_end_s(chunked),
            baseline=_mean_end_s(static),
            is_change=True,
            brief="overall latency -40%",
            setup="all at once, from arrival to the last token",
        ),
    ]


def _online_rows(engine: MeasuredEngine, load: Load) -> list[ReproRow]:
    """Long prompts arriving among running chats, at a rate that the baseline can sustain."""
    all_at_once = at_once(load.records(capacity_per_s=1.0))
    capacity = _play(engine, f"{load.name}, prefill_first, all at once", all_at_once, PREFILL_FIRST)
    records = load.records(capacity_per_s=capacity.requests_per_s)
    whole = _play(engine, f"{load.name}, prefill_first, at its rate", records, PREFILL_FIRST)
    chunked = _play(engine, f"{load.name}, chunked_prefill, at its rate", records, SMALL_CHUNKED)
    return [
        ReproRow(
            name="long_and_short: time between tokens, P99",
            unit="s",
            measured=percentile(chunked.inter_token_s(), 99),
            baseline=percentile(whole.inter_token_s(), 99),
            is_change=True,
            published="up to 5.6x the capacity at a P99 bound",
            setup=f"arrivals at {RATED} of prefill_first's capacity, one run; chunks of {SMALL_CHUNK}",
            equal_output=chunked.outputs == whole.outputs,
            why=f"a whole prompt stalls all streams: {_stalled_share(whole):.1%} of gaps are longer than {STALL_S} s,"
            f" with chunks {_stalled_share(chunked):.1%}; where stalls are fewer than one in a hundred, this percentile"
            " sees full steps instead",
        ),
        ReproRow(
            name="long_and_short: a request's longest time between tokens, P90",
            unit="s",
            measured=percentile(_longest_gaps_s(chunked), 90),
            baseline=percentile(_longest_gaps_s(whole), 90),
            is_change=True,
            setup=f"same runs; the longest of all {max(_longest_gaps_s(whole), default=0.0):.2f} s,"
            f" with chunks {max(_longest_gaps_s(chunked), default=0.0):.2f} s",
        ),
        ReproRow(
            name="long_and_short: time to the first token, median",
            unit="s",
            measured=percentile(chunked.ttfts_s(), 50),
            baseline=percentile(whole.ttfts_s(), 50),
            is_change=True,
            setup="same runs",
            why="the price: prompts share each step with decodes",
        ),
    ]


def _hybrid_row(timer: StepTimer) -> ReproRow:
    riders = [(1, RIDER_CONTEXT)] * NUM_RIDERS
    times_s = timer.best_times_s(
        {"chunk": [(HYBRID_CHUNK, 0)], "hybrid": [*riders, (HYBRID_CHUNK - NUM_RIDERS, 0)], "riders": riders},
        repeats=HYBRID_ROUNDS,
    )
    chunk_s, hybrid_s, riders_s = times_s["chunk"], times_s["hybrid"], times_s["riders"]
    return ReproRow(
        name="a full chunk with decodes along",
        unit="ms",
        measured=1e3 * hybrid_s,
        baseline=1e3 * chunk_s,
        published="217.7 ms with, 217.2 without; 4 decodes alone 68.1 (Yi-34B)",
        setup=f"{HYBRID_CHUNK - NUM_RIDERS} + {NUM_RIDERS} tokens against {HYBRID_CHUNK}, decodes after"
        f" {RIDER_CONTEXT}; best of {HYBRID_ROUNDS}",
        why=f"the {NUM_RIDERS} decodes alone take {1e3 * riders_s:.1f} ms, along with the chunk"
        f" {1e3 * (hybrid_s - chunk_s * (HYBRID_CHUNK - NUM_RIDERS) / HYBRID_CHUNK):.1f} ms",
    )


def _needs(rates: BestRates, run: LoadRun) -> str:
    padding = [step.num_padding_tokens for step in run.steps]
    needed = sum(rates.needed_s(work, pad) for work, pad in zip(run.works, padding, strict=True))
    tokens = rates.token_s * sum(work.num_tokens - pad for work, pad in zip(run.works, padding, strict=True))
    return f"{tokens / needed:.0%} of the needed time is products of tokens, the rest attention and the head"


def _lost_row(rates: BestRates, runs: Offline) -> ReproRow:
    """The machine is fast and slow by turns of seconds to minutes: what it did to the run is told apart by rates of the
    seconds before and after it.
    """
    run = runs.chunked[0]
    reached = utilization_of(rates, run, while_prompts_wait=True)
    beside = best_rates(shortest(runs.beside), max_num_tokens=STATIC_TOKEN_BUDGET)
    reached_beside = utilization_of(beside, run, while_prompts_wait=True)
    each = step_utilization(beside, run)
    return ReproRow(
        name="long_offline: time lost at saturation",
        unit="%",
        measured=1.0 - reached,
        baseline=1.0 - utilization_of(rates, runs.static[0], while_prompts_wait=True),
        brief="55% -> 15%",
        setup="the rest of the time, by the times of all operations of chunked_prefill's steps",
        why=f"{reached_beside - reached:.1%} because the machine was slower than in the best seconds of this"
        f" measurement: at the best rates of the seconds before and after the run utilization is {reached_beside:.1%}."
        f" {_losses(lost_time(beside, run, runs.operations))}. The median step reaches {each.median:.0%} of these"
        f" rates, one in ten {each.best_tenth:.0%} or more",
    )


def _losses(lost: LostTime | None) -> str:
    if lost is None:
        return "This executor does not time its operations"
    return (
        f"Beyond these rates products and all else per token take {lost.products:.1%} of the time, attention"
        f" {lost.attention:.1%}; {lost.outside:.1%} goes by in steps outside operations (planning, layout of the"
        f" batch, sampling), {lost.between:.1%} between steps"
    )


def _mean_end_s(run: LoadRun) -> float:
    return statistics.fmean(request.finished_s for request in run.requests if request.finished_s is not None)


def _stalled_share(run: LoadRun) -> float:
    gaps = run.inter_token_s()
    return sum(gap > STALL_S for gap in gaps) / max(len(gaps), 1)


def _longest_gaps_s(run: LoadRun) -> list[float]:
    return [max(request.inter_token_s) for request in run.requests if request.inter_token_s]


NOTE_ON_UTILIZATION = (
    "Utilization here is the needed work (tokens without padding, query-key pairs, keys read by decodes, rows of the "
    "head), each at the best rate that its kernels reached in steps made for it, divided by the time of the run. A "
    "GPU's utilization counts busy cycles, those of padding included."
)
NOTE_ON_BRIEF = (
    "The brief says Mixtral-8x7B, which neither paper serves; 45% -> 85% stands in neither, and 85/45 is its own 1.9x "
    "once more. It also says that padding is what SARATHI removes: padding belongs to static batches and goes with "
    "iteration-level batching already; what chunks remove are stalls of decodes and, in a pipeline, bubbles."
)
