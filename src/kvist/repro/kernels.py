"""TensorRT-LLM's idea: fused kernels and a plan made ahead, against the same kernels one by one.

Four engines over one set of packed weights take turns: the plan as it is; its operations not fused; the fused ones sent
one by one from Python; and neither. A processor whose matrix unit is fast and slow by turns makes the shortest of some
steps a matter of luck, so engines are compared step beside step: each round gives a ratio, and the median counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from kvist.bench.step_timer import Chunks, StepTimer
from kvist.core.errors import ConfigError
from kvist.execution.choice import choose_executor
from kvist.execution.kv_dtype import kv_dtype
from kvist.execution.model_executor import ModelExecutor
from kvist.execution.native.load_weights import load_packed_weights
from kvist.execution.native.runner import NativeRunner
from kvist.execution.native.self_test import named_isa
from kvist.execution.sampler import Sampler
from kvist.execution.threads import granted_cores
from kvist.models.registry import read_model
from kvist.repro.plan_variants import EagerRunner, EagerUnfusedRunner, UnfusedRunner
from kvist.repro.result import BarPlot, ReproResult
from kvist.repro.row import ReproRow
from kvist.repro.setting import ReproSetting
from kvist.runtime.real_clock import RealClock
from kvist.weights.checkpoint import open_checkpoint

FUSED = "plan, fused"
RUNNERS: Mapping[str, type[NativeRunner]] = {
    FUSED: NativeRunner,
    "plan, operations apart": UnfusedRunner,
    "one by one, fused": EagerRunner,
    "one by one, apart": EagerUnfusedRunner,
}
CONTEXT = 192
STEPS: Mapping[str, Chunks] = {
    "decode, 1 stream": [(1, CONTEXT)],
    "decode, 16 streams": [(1, CONTEXT)] * 16,
    "prefill of 128": [(128, 0)],
    "prefill of 512": [(512, 0)],
}
QUICK_STEPS = ("decode, 1 stream", "prefill of 128")
MAX_TOKENS = 512
ROUNDS, QUICK_ROUNDS = 24, 4


def run(setting: ReproSetting) -> ReproResult:
    executors = load_executors(setting)
    names = QUICK_STEPS if setting.is_quick else tuple(STEPS)
    steps = {name: STEPS[name] for name in names}
    rounds = QUICK_ROUNDS if setting.is_quick else ROUNDS
    setting.say(f"{', '.join(names)}; {rounds} rounds")
    clock = RealClock()
    timers = {
        kind: StepTimer(executor, clock, block_size=setting.cache.block_size) for kind, executor in executors.items()
    }
    times_s = _times_s(timers, steps, rounds)
    tokens = {kind: timer.sampled(STEPS["prefill of 128"]) for kind, timer in timers.items()}
    description = executors[FUSED].description
    for executor in executors.values():
        executor.close()
    rows = [
        _row(step, kind, times_s, is_equal=tokens[kind] == tokens[FUSED])
        for step in steps
        for kind in list(executors)[1:]
    ]
    return ReproResult(
        name="kernels",
        title="TensorRT-LLM: fused operations and a plan made ahead",
        setup=(
            f"Single steps, {rounds} rounds in which the engines take turns, medians of the rounds' ratios; decodes"
            f" after {CONTEXT} tokens. The measured engine is the plan as it is, replayed without Python; the baselines"
            " run the same kernels."
        ),
        executor=description,
        size=setting.size,
        repeats=rounds,
        rows=rows,
        plots=[
            BarPlot(
                title="Time of a step",
                unit="ms",
                groups=list(steps),
                values={
                    kind: [1e3 * statistics.median(times[step]) for step in steps] for kind, times in times_s.items()
                },
            )
        ],
        notes=[NOTE],
    )


def load_executors(setting: ReproSetting) -> dict[str, ModelExecutor]:
    """One of each kind, over the same packed weights. Raises ConfigError for a model that has no baseline."""
    checkpoint = open_checkpoint(setting.model_path)
    model = read_model(checkpoint)
    choose_executor("native", model.spec)
    if model.spec.moe is not None:
        raise ConfigError("the baseline has no unfused mixture of experts; give a dense model")
    num_threads = setting.executor.num_threads or granted_cores()
    isa = named_isa(setting.executor.isa)
    setting.say("loading the model")
    weights = load_packed_weights(checkpoint, model, num_threads=num_threads)
    block_size = setting.cache.block_size
    return {
        kind: ModelExecutor(
            runner(
                model,
                weights,
                num_blocks=-(-16 * (CONTEXT + block_size) // block_size) + MAX_TOKENS // block_size,
                block_size=block_size,
                dtype=kv_dtype(setting.cache.kv_cache_dtype, "native", isa=isa, head_dim=model.spec.head_dim),
                max_num_tokens=MAX_TOKENS,
                max_num_rows=16,
                num_threads=num_threads,
                isa=isa,
            ),
            Sampler(processed_logprobs=False),
            engine_seed=0,
        )
        for kind, runner in RUNNERS.items()
    }


def _times_s(
    timers: Mapping[str, StepTimer], steps: Mapping[str, Chunks], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Kind -> step -> one time per round. Who begins changes from round to round."""
    kinds = list(timers)
    times_s: dict[str, dict[str, list[float]]] = {kind: {step: [] for step in steps} for kind in kinds}
    for step, chunks in steps.items():
        for timer in timers.values():
            timer.best_s(chunks, repeats=1)  # warm-up
        for number in range(rounds):
            first = number % len(kinds)
            for kind in kinds[first:] + kinds[:first]:
                times_s[kind][step].append(timers[kind].best_s(chunks, repeats=1))
    return times_s


def _row(step: str, kind: str, times_s: Mapping[str, Mapping[str, Sequence[float]]], *, is_equal: bool) -> ReproRow:
    fused, other = times_s[FUSED][step], times_s[kind][step]
    ratios = [slow_s / fast_s for slow_s, fast_s in zip(other, fused, strict=True)]
    fused_s, ratio = statistics.median(fused), statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4)
    return ReproRow(
        name=f"{step}: against {kind}",
        unit="steps/s",
        measured=1.0 / fused_s,
        baseline=1.0 / (fused_s * ratio),
        spread=(high - low) / ratio,
        brief="many optimizations, no figure" if kind == "one by one, apart" else None,
        setup=f"{1e3 * statistics.median(other):.2f} -> {1e3 * fused_s:.2f} ms; half of the rounds between"
        f" {low:.2f}x and {high:.2f}x",
        equal_output=is_equal,
    )


NOTE = (
    "TensorRT-LLM publishes speeds, not what fusing or planning alone gives, so there is no published ratio to set "
    "beside. Sending operations from Python costs the same few microseconds each whatever they compute: much of a "
    "small model's decode step, little of a prompt's."
)
