"""Grouped-query attention (EMNLP'23): fewer heads of K and V, in random models that differ in nothing else."""

from __future__ import annotations

from kvist.bench.random_checkpoint import random_checkpoint
from kvist.execution.model_executor import ModelExecutor
from kvist.models.registry import read_model
from kvist.repro.result import BarPlot, ReproResult
from kvist.repro.row import ReproRow
from kvist.repro.setting import ReproSetting
from kvist.repro.step_speeds import StepSpeeds, load_executor, measure_speeds

LIKE, FORMAT = "smollm2-135m", "q8_0"
QUICK_LAYERS = 6
BATCH, CONTEXT, PROMPT_TOKENS = 8, 2048, 512
QUICK_BATCH, QUICK_CONTEXT, QUICK_PROMPT_TOKENS = 4, 1024, 128


def run(setting: ReproSetting) -> ReproResult:
    batch, context, prompt_tokens = (
        (QUICK_BATCH, QUICK_CONTEXT, QUICK_PROMPT_TOKENS) if setting.is_quick else (BATCH, CONTEXT, PROMPT_TOKENS)
    )
    layers = QUICK_LAYERS if setting.is_quick else None
    shape = read_model(random_checkpoint(LIKE, FORMAT, layers)).spec
    heads = {"MHA": shape.num_q_heads, "GQA": shape.num_kv_heads, "MQA": 1}
    executors: dict[str, ModelExecutor] = {}
    kv_bytes: dict[str, int] = {}
    for name, num_kv_heads in heads.items():
        setting.say(f"{name}, {num_kv_heads} heads of K and V")
        checkpoint = random_checkpoint(LIKE, FORMAT, layers, num_kv_heads=num_kv_heads)
        executors[name], kv_bytes[name] = load_executor(setting, checkpoint, num_kv_tokens=batch * (context + 32))
    speeds = measure_speeds(
        executors,
        setting.cache.block_size,
        prompt_tokens=prompt_tokens,
        context=context,
        batch=batch,
        repeats=2 if setting.is_quick else 5,
    )
    description = executors["GQA"].description
    for executor in executors.values():
        executor.close()
    rows = [row for name in ("GQA", "MQA") for row in _rows(name, heads, speeds, kv_bytes, batch, context)]
    return ReproResult(
        name="gqa",
        title="Grouped-query attention: fewer heads of K and V",
        setup=(
            f"Random weights in the shape of {LIKE} ({shape.num_layers} layers, {shape.num_q_heads} query heads),"
            f" {FORMAT}; baseline MHA: as many heads of K and V as of queries."
        ),
        executor=description,
        size=setting.size,
        repeats=1,
        rows=rows,
        plots=[
            BarPlot(
                title=f"Decode, {batch} streams after {context} tokens",
                unit="tokens/s",
                groups=list(heads),
                values={"decode": [speeds[name].batch_decode for name in heads]},
            )
        ],
        notes=[NOTE],
    )


def _rows(
    name: str,
    heads: dict[str, int],
    speeds: dict[str, StepSpeeds],
    kv_bytes: dict[str, int],
    batch: int,
    context: int,
) -> list[ReproRow]:
    this, base = speeds[name], speeds["MHA"]
    title = f"{name}, {heads[name]} of {heads['MHA']} heads"
    return [
        ReproRow(
            name=f"{title}: K and V per token",
            unit="bytes",
            measured=kv_bytes[name],
            baseline=kv_bytes["MHA"],
            is_change=True,
            published="by the number of groups",
            brief="smaller, no figure" if name == "GQA" else None,
            setup="all layers",
        ),
        ReproRow(
            name=f"{title}: decode, {batch} streams",
            unit="tokens/s",
            measured=this.batch_decode,
            baseline=base.batch_decode,
            published="5.4x less time (T5-XXL, 8 groups)" if name == "GQA" else "6.3x less time (T5-XXL)",
            setup=f"after {context} tokens each",
            why="of a decode's time only attention's part shrinks; T5-XXL's decoder read far more K and V than weights",
        ),
        ReproRow(
            name=f"{title}: decode, one stream",
            unit="tokens/s",
            measured=this.decode,
            baseline=base.decode,
            setup=f"after {context} tokens",
        ),
        ReproRow(
            name=f"{title}: prefill",
            unit="tokens/s",
            measured=this.prefill,
            baseline=base.prefill,
            setup="one prompt in one step",
            why="the products that make K and V shrink too",
        ),
    ]


NOTE = (
    "Quality cannot be measured on random weights. The paper: 47.2 (MHA), 47.1 (8 groups) and 46.6 (one) on its mean "
    "over tasks, at 1.51, 0.28 and 0.24 s a sample. The brief says in one place that decode is bound by communication "
    "and in the next that it is bound by memory; on one node it is the second, so fewer bytes of K and V help."
)
