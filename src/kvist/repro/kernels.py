"""TensorRT-LLM's idea: fused kernels and a plan made ahead, against the same kernels one by one.

Four engines over one set of packed weights take turns: the plan as it is; its operations not fused; the fused ones sent
one by one from Python; and neither.
"""

from __future__ import annotations

from collections.abc import Mapping

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
ROUNDS, QUICK_ROUNDS = 12, 4


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
    best: dict[str, dict[str, float]] = {kind: {} for kind in executors}
    for _ in range(rounds):
        for kind, timer in timers.items():
            for step, time_s in timer.best_times_s(steps, repeats=1).items():
                best[kind][step] = min(time_s, best[kind].get(step, time_s))
    tokens = {kind: timer.sampled(STEPS["prefill of 128"]) for kind, timer in timers.items()}
    description = executors[FUSED].description
    for executor in executors.values():
        executor.close()
    rows = [
        _row(step, kind, best, is_equal=tokens[kind] == tokens[FUSED]) for step in steps for kind in list(executors)[1:]
    ]
    return ReproResult(
        name="kernels",
        title="TensorRT-LLM: fused operations and a plan made ahead",
        setup=(
            f"Single steps, best of {rounds} rounds in turn; decodes after {CONTEXT} tokens. The measured engine is the"
            " plan as it is, replayed without Python; the baselines run the same kernels."
        ),
        executor=description,
        size=setting.size,
        repeats=1,
        rows=rows,
        plots=[
            BarPlot(
                title="Time of a step",
                unit="ms",
                groups=list(steps),
                values={kind: [1e3 * times[step] for step in steps] for kind, times in best.items()},
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


def _row(step: str, kind: str, best: Mapping[str, Mapping[str, float]], *, is_equal: bool) -> ReproRow:
    fused_s, other_s = best[FUSED][step], best[kind][step]
    return ReproRow(
        name=f"{step}: against {kind}",
        unit="steps/s",
        measured=1.0 / fused_s,
        baseline=1.0 / other_s,
        brief="many optimizations, no figure" if kind == "one by one, apart" else None,
        setup=f"{1e3 * other_s:.2f} -> {1e3 * fused_s:.2f} ms",
        equal_output=is_equal,
    )


NOTE = (
    "TensorRT-LLM publishes speeds, not what fusing or planning alone gives, so there is no published ratio to set "
    "beside. Sending operations from Python costs the same few microseconds each whatever they compute: much of a "
    "small model's decode step, little of a prompt's."
)
