"""Quantization: the same weights in 16, 8, 5 and 4 bits, and K and V in 16 and 8: bytes, speed, perplexity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvist.bench.perplexity import perplexity, token_logprobs
from kvist.bench.requantized_checkpoint import requantized
from kvist.config.cache_folder import cache_folder
from kvist.execution.model_executor import ModelExecutor
from kvist.quantization.formats import BF16, Q4_0, Q4_1, Q5_1, Q8_0, WeightFormat
from kvist.repro.result import BarPlot, ReproResult
from kvist.repro.row import ReproRow
from kvist.repro.setting import ReproSetting
from kvist.repro.step_speeds import StepSpeeds, load_executor, measure_speeds
from kvist.tokenization.loading import load_tokenizer
from kvist.weights.checkpoint import Checkpoint, open_checkpoint
from kvist.workload.text_source import read_sentences

FORMATS: Sequence[WeightFormat] = (BF16, Q8_0, Q5_1, Q4_1, Q4_0)
QUICK_FORMATS = (BF16, Q8_0, Q4_0)
KV_DTYPES = ("float16", "bfloat16", "int8")
QUICK_KV_DTYPES = ("float16", "int8")
WINDOW_TOKENS, NUM_WINDOWS = 512, 8
QUICK_WINDOW_TOKENS = 128
PROMPT_TOKENS, CONTEXT, BATCH = 512, 192, 16
QUICK_PROMPT_TOKENS = 128
LONG_CONTEXT = 1024  # where K and V are a good part of what a decode reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One format. num_bytes: of the weights as stored, or of K and V per token."""

    num_bytes: int
    speeds: StepSpeeds
    perplexity: float


@dataclass(frozen=True, slots=True)
class Variant:
    """What is loaded. kv_cache_dtype None: the setting's."""

    checkpoint: Checkpoint
    kv_cache_dtype: str | None = None


def run(setting: ReproSetting) -> ReproResult:
    checkpoint = open_checkpoint(setting.model_path)
    windows = text_windows(setting, checkpoint)
    formats = QUICK_FORMATS if setting.is_quick else FORMATS
    setting.say("weights in " + ", ".join(each.name for each in formats))
    variants = {each.name: Variant(requantized(checkpoint, each)) for each in formats}
    weights, executor = _measure(setting, variants, windows, context=CONTEXT)
    dtypes = QUICK_KV_DTYPES if setting.is_quick else KV_DTYPES
    setting.say("K and V in " + ", ".join(dtypes))
    kv, _ = _measure(setting, {dtype: Variant(checkpoint, dtype) for dtype in dtypes}, windows, context=LONG_CONTEXT)
    own = ", ".join(name for name in checkpoint.bytes_per_format if name != "F32")
    rows = [row for name in list(weights)[1:] for row in _rows(f"weights {name}", weights, name, "MB", CONTEXT)]
    rows += [row for name in list(kv)[1:] for row in _rows(f"K and V {name}", kv, name, "bytes/token", LONG_CONTEXT)]
    return ReproResult(
        name="quant",
        title="Quantization: bytes, speed, perplexity",
        setup=(
            f"Baseline of weights: {formats[0].name}, 16 bits; of K and V: {next(iter(kv))}. Perplexity over"
            f" {sum(map(len, windows)):,} tokens of Alice's Adventures in Wonderland, in windows of {len(windows[0])}."
        ),
        executor=executor,
        size=setting.size,
        repeats=1,
        rows=rows,
        plots=[
            BarPlot(
                title="Weights: tokens per second",
                unit="tokens/s",
                groups=list(weights),
                values={
                    "decode, one stream": [each.speeds.decode for each in weights.values()],
                    f"decode, {BATCH} streams": [each.speeds.batch_decode for each in weights.values()],
                    "prefill": [each.speeds.prefill for each in weights.values()],
                },
            )
        ],
        notes=[NOTE.format(own=own)],
    )


def text_windows(setting: ReproSetting, checkpoint: Checkpoint) -> list[list[int]]:
    """The text's tokens from its beginning, in windows that are scored each on its own."""
    tokenizer = load_tokenizer(checkpoint, path=setting.model.tokenizer, cache_folder=cache_folder())
    token_ids = tokenizer.encode(" ".join(read_sentences()), add_special_tokens=False)
    size, count = (QUICK_WINDOW_TOKENS, 1) if setting.is_quick else (WINDOW_TOKENS, NUM_WINDOWS)
    return [token_ids[start : start + size] for start in range(0, size * count, size)]


def _measure(
    setting: ReproSetting, variants: Mapping[str, Variant], windows: Sequence[Sequence[int]], *, context: int
) -> tuple[dict[str, Measured], str]:
    """By name, and what computed."""
    block_size = setting.cache.block_size
    executors: dict[str, ModelExecutor] = {}
    num_bytes: dict[str, int] = {}
    perplexities: dict[str, float] = {}
    for name, variant in variants.items():
        executor, kv_bytes = load_executor(
            setting,
            variant.checkpoint,
            num_kv_tokens=BATCH * (context + 32),
            kv_cache_dtype=variant.kv_cache_dtype,
        )
        executors[name] = executor
        num_bytes[name] = variant.checkpoint.weight_bytes if variant.kv_cache_dtype is None else kv_bytes
        perplexities[name] = perplexity(
            logprob for window in windows for logprob in token_logprobs(executor, window, block_size=block_size)
        )
    speeds = measure_speeds(
        executors,
        block_size,
        prompt_tokens=QUICK_PROMPT_TOKENS if setting.is_quick else PROMPT_TOKENS,
        context=context,
        batch=BATCH,
        repeats=2 if setting.is_quick else 5,
    )
    description = next(iter(executors.values())).description
    for executor in executors.values():
        executor.close()
    measured = {
        name: Measured(num_bytes=num_bytes[name], speeds=speeds[name], perplexity=perplexities[name])
        for name in variants
    }
    return measured, description


def _rows(name: str, measured: dict[str, Measured], key: str, unit: str, context: int) -> list[ReproRow]:
    this, base = measured[key], next(iter(measured.values()))
    scale = 1e6 if unit == "MB" else 1.0

    def speed(what: str, measured: float, baseline: float, setup: str) -> ReproRow:
        return ReproRow(name=f"{name}: {what}", unit="tokens/s", measured=measured, baseline=baseline, setup=setup)

    return [
        ReproRow(
            name=f"{name}: bytes",
            unit=unit,
            measured=this.num_bytes / scale,
            baseline=base.num_bytes / scale,
            is_change=True,
            brief="less memory, no figure" if key == "Q8_0" else None,
            setup="as stored",
        ),
        speed("decode, one stream", this.speeds.decode, base.speeds.decode, f"after {context} tokens"),
        speed(
            f"decode, {BATCH} streams",
            this.speeds.batch_decode,
            base.speeds.batch_decode,
            f"after {context} tokens each",
        ),
        speed("prefill", this.speeds.prefill, base.speeds.prefill, "one prompt in one step"),
        ReproRow(
            name=f"{name}: perplexity",
            unit="",
            measured=this.perplexity,
            baseline=base.perplexity,
            is_change=True,
            setup="the text above",
        ),
    ]


NOTE = (
    "The model is shipped in {own}; the other formats are rounded from that, plainly, without a search for better "
    "scales. So BF16 here is the shipped model to three digits, and what the shipped file lost against the original "
    "weights cannot be seen. The brief says that quantization lowers memory and computing, without figures; computing "
    "falls only where the kernels multiply smaller numbers."
)
