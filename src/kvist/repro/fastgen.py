"""DeepSpeed-FastGen (2024): Dynamic SplitFuse, steps of one fixed size, against whole prompts first.

FastGen's service level asks a prompt speed of 512 tokens/s and a generation speed of 2, 4 or 6 tokens/s (exponential
mean) of Llama-2-70B on four A100s. It is carried over as the same shares of the unloaded speed: there a prompt of 2,048
tokens takes 401 ms and a decode step 29 ms (LMDeploy's measurements), so the prompt must keep 10.0% of its speed and
the answer 5.8, 11.6 or 17.4%. Here the same shares of this machine's unloaded speed are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvist.bench.load_run import LoadRun, RequestRun, percentile
from kvist.bench.step_timer import StepTimer
from kvist.config.scheduler_config import SchedulerConfig
from kvist.repro.measured_engine import MAX_NUM_SEQS, MeasuredEngine, at_once
from kvist.repro.quick_loads import QUICK_LONG_AND_SHORT
from kvist.repro.result import BarPlot, ReproResult
from kvist.repro.row import ReproRow
from kvist.repro.setting import ReproSetting
from kvist.runtime.real_clock import RealClock
from kvist.workload.load_file import Load
from kvist.workload.trace_record import TraceRecord

PROMPT_SHARE = 512 / (2048 / 0.401)
ANSWER_SHARES = {2: 2 * 0.029, 4: 4 * 0.029, 6: 6 * 0.029}  # by FastGen's tokens/s
EMA_WEIGHT = 0.1  # of the newest gap between tokens
PROMPT_TOKENS, CONTEXT_TOKENS = 2048, 192  # of the unloaded figures

RATES, QUICK_RATES = (0.7, 0.9, 1.1), (0.9,)
STATED_RATE = 0.8  # of the load: its rates are scaled from that
LEAST = 24  # requests, outside of quick runs
POOL_TOKENS = 65_536
BUDGETS = (32, 64, 128, 256, 512)
STEADY_DECODES = 8  # beside a chunk, when a budget is chosen
MARGIN = 0.8  # of the asked gap between tokens that a step may take
WHOLE_BUDGET = 4096
PREFILL_FIRST = SchedulerConfig(policy="prefill_first", max_num_batched_tokens=WHOLE_BUDGET, max_num_seqs=MAX_NUM_SEQS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """Speeds asked of each request, in tokens per second."""

    prompt_per_s: float
    answer_per_s: float

    def is_met(self, request: RequestRun) -> bool:
        """Whether its prompt was that fast, queueing included, and its answer never fell below that speed."""
        ttft_s = request.ttft_s
        if ttft_s is None or ttft_s > len(request.prompt_token_ids) / self.prompt_per_s:
            return False
        return slowest_gap_s(request.inter_token_s) <= 1.0 / self.answer_per_s


def slowest_gap_s(gaps_s: Sequence[float]) -> float:
    """The largest value of the exponential mean of gaps between tokens; 0.0 without any."""
    return max(accumulate(gaps_s, lambda mean, gap: mean + EMA_WEIGHT * (gap - mean)), default=0.0)


def run(setting: ReproSetting) -> ReproResult:
    load = setting.load("long_and_short", QUICK_LONG_AND_SHORT, least=LEAST)
    rates = QUICK_RATES if setting.is_quick else RATES
    with MeasuredEngine(setting, num_kv_tokens=POOL_TOKENS, max_num_batched_tokens=WHOLE_BUDGET) as engine:
        setting.say("unloaded speed")
        timer = StepTimer(engine.model.executor, RealClock(), block_size=engine.model.block_size)
        prompt_per_s = PROMPT_TOKENS / timer.best_s([(PROMPT_TOKENS, 0)], repeats=2)
        answer_per_s = 1.0 / timer.best_s([(1, CONTEXT_TOKENS)], repeats=5)
        levels = {
            asked: ServiceLevel(prompt_per_s=PROMPT_SHARE * prompt_per_s, answer_per_s=share * answer_per_s)
            for asked, share in ANSWER_SHARES.items()
        }
        budgets = {asked: choose_budget(timer, 1.0 / level.answer_per_s) for asked, level in levels.items()}
        runs = _play_rates(engine, load, rates, sorted(set(budgets.values())))
    rows = [_throughput_row(runs, asked, levels[asked], budget) for asked, budget in budgets.items()]
    smallest = min(budgets.values())
    return engine.result(
        "fastgen",
        "DeepSpeed-FastGen: SplitFuse",
        setup=(
            f"long_and_short; split_fuse with the tokens a step that keep each level, of {', '.join(map(str, BUDGETS))}"
            f" by timing steps; prefill_first with whole prompts (up to {WHOLE_BUDGET} tokens a step), at most"
            f" {MAX_NUM_SEQS} requests, no prefix cache;"
            f" arrivals at {', '.join(map(str, rates))} of prefill_first's capacity. Unloaded: {prompt_per_s:.0f}"
            f" prompt tokens/s, {answer_per_s:.0f} output tokens/s."
        ),
        repeats=1,
        rows=[*rows, *_latency_rows(runs, rates, smallest)],
        plots=[_plot(runs, asked, level, rates) for asked, level in levels.items()],
        notes=[NOTE],
    )


Runs = Mapping[int | None, Mapping[float, LoadRun]]  # by split_fuse's budget, None for prefill_first, then by rate


def choose_budget(timer: StepTimer, gap_s: float) -> int:
    """The largest budget whose full step, a few decodes in it, leaves some of the asked gap between tokens."""
    fitting = BUDGETS[0]
    for budget in BUDGETS:
        chunks = [(1, CONTEXT_TOKENS)] * STEADY_DECODES + [(budget - STEADY_DECODES, CONTEXT_TOKENS)]
        if timer.best_s(chunks) <= MARGIN * gap_s:
            fitting = budget
    return fitting


def _play_rates(engine: MeasuredEngine, load: Load, rates: Sequence[float], budgets: Sequence[int]) -> Runs:
    def play(budget: int | None, at: str, records: Sequence[TraceRecord]) -> LoadRun:
        kv_cache = engine.model.new_cache(enable_prefix_caching=False)
        scheduler = PREFILL_FIRST
        if budget is not None:
            scheduler = SchedulerConfig(
                policy="split_fuse", max_num_batched_tokens=budget, max_num_seqs=min(MAX_NUM_SEQS, budget)
            )
        return engine.play(f"{load.name}, {_name(budget)}, {at}", records, scheduler=scheduler, kv_cache=kv_cache)

    capacity_per_s = play(None, "all at once", at_once(load.records(capacity_per_s=1.0))).requests_per_s
    runs: dict[int | None, dict[float, LoadRun]] = {budget: {} for budget in (None, *budgets)}
    for rate in rates:
        records = load.records(capacity_per_s=capacity_per_s, scale=rate / STATED_RATE)
        for budget, each in runs.items():
            each[rate] = play(budget, f"at {rate} of capacity", records)
    return runs


def _name(budget: int | None) -> str:
    return "prefill_first" if budget is None else f"split_fuse {budget}"


def effective_per_s(run: LoadRun, level: ServiceLevel) -> float:
    """Requests per second that met the service level."""
    return sum(map(level.is_met, run.requests)) / run.elapsed_s


def _throughput_row(runs: Runs, asked: int, level: ServiceLevel, budget: int) -> ReproRow:
    fused, whole = runs[budget], runs[None]
    fused_met, whole_met = (_share_met(each, level) for each in (fused, whole))
    return ReproRow(
        name=f"effective throughput, answers as at {asked} tokens/s",
        unit="requests/s",
        measured=max(effective_per_s(run, level) for run in fused.values()),
        baseline=max(effective_per_s(run, level) for run in whole.values()),
        published="2.3x (Llama-2-70B, 4 x A100, vLLM)" if asked == 2 else None,
        setup=f"asked here: {level.prompt_per_s:.0f} prompt and {level.answer_per_s:.1f} output tokens/s; each policy"
        f" at its best rate, split_fuse with {budget} tokens a step",
        equal_output=all(fused[rate].outputs == run.outputs for rate, run in whole.items()),
        why=f"requests that met it, by rate: {whole_met} -> {fused_met}",
    )


def _share_met(runs: Mapping[float, LoadRun], level: ServiceLevel) -> str:
    shares = [sum(map(level.is_met, run.requests)) / len(run.requests) for run in runs.values()]
    return ", ".join(f"{share:.0%}" for share in shares)


def _latency_rows(runs: Runs, rates: Sequence[float], budget: int) -> list[ReproRow]:
    rate = rates[-2] if len(rates) > 1 else rates[0]
    fused, whole = runs[budget][rate], runs[None][rate]
    stalls = sum(gap_s > max(fused.inter_token_s(), default=0.0) for gap_s in whole.inter_token_s())
    return [
        ReproRow(
            name="latency of a token, P95",
            unit="s",
            measured=percentile(fused.inter_token_s(), 95),
            baseline=percentile(whole.inter_token_s(), 95),
            is_change=True,
            published="up to 3.7x lower",
            setup=f"time between tokens at {rate} of capacity; {budget} tokens a step",
            why=f"P99 {percentile(whole.inter_token_s(), 99):.3f} -> {percentile(fused.inter_token_s(), 99):.3f} s; of"
            f" prefill_first's gaps {stalls / max(len(whole.inter_token_s()), 1):.1%} are longer than the longest with"
            " SplitFuse",
        ),
        ReproRow(
            name="mean time to the last token",
            unit="s",
            measured=_mean_latency_s(fused),
            baseline=_mean_latency_s(whole),
            is_change=True,
            published="2x lower",
            setup=f"from arrival, at {rate} of capacity",
        ),
    ]


def _mean_latency_s(run: LoadRun) -> float:
    ended = [request.finished_s - request.arrival_s for request in run.requests if request.finished_s is not None]
    return sum(ended) / len(ended)


def _plot(runs: Runs, asked: int, level: ServiceLevel, rates: Sequence[float]) -> BarPlot:
    return BarPlot(
        title=f"Requests that meet the service level ({asked} tokens/s)",
        unit="requests/s",
        groups=[f"{rate} of capacity" for rate in rates],
        values={_name(budget): [effective_per_s(each[rate], level) for rate in rates] for budget, each in runs.items()},
    )


NOTE = (
    "FastGen asks a prompt speed of 512 tokens/s and a generation speed of 2, 4 or 6 tokens/s of Llama-2-70B on four "
    "A100s. Unloaded, that model computes 2,048 prompt tokens in 401 ms and a decode in 29 ms there (LMDeploy), so it "
    f"asks {PROMPT_SHARE:.1%} of the prompt's speed and {ANSWER_SHARES[2]:.1%}, {ANSWER_SHARES[4]:.1%} or "
    f"{ANSWER_SHARES[6]:.1%} of the answer's; here the same shares are asked of this machine. The exponential mean "
    f"gives the newest gap a weight of {EMA_WEIGHT}. The baseline is FastGen's: iteration-level batching that computes "
    "a prompt whole before decodes go on, as vLLM did then; FastGen's 2.3x compares two systems whose kernels differ "
    "too, here only the policy differs. On a GPU a step of some hundred tokens takes hardly longer than a decode, so "
    "that a budget costs no speed; here a step's time grows with its tokens from the first on, so a budget that keeps "
    "a fast answer's gap computes prompts in many small steps, each of which reads all weights."
)
