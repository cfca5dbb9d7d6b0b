"""The figures of the brief, a survey of inference papers in Chinese, and where it is at odds with itself or with the
papers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BriefFigure:
    """A claim, where it stands in the brief, and which reproduction answers it."""

    claim: str
    place: str
    repro: str
    remark: str


PROSE, TABLE_1, TABLE_2 = "text", "table of contributions", "table of effects"

BRIEF_FIGURES = (
    BriefFigure(
        "DistServe, LLaMA-13B: time to first token 2.1x lower",
        f"{PROSE}, {TABLE_1}",
        "distserve",
        "not in the paper, which serves OPT; its 2.1x is goodput per GPU of a 13B model",
    ),
    BriefFigure("DistServe, LLaMA-13B: time per output token 1.5x lower", PROSE, "distserve", "not in the paper"),
    BriefFigure(
        "DistServe: time to first token -60%, per output token -30%",
        TABLE_2,
        "distserve",
        "at odds with the brief's own text: 2.1x lower is -52%, 1.5x is -33%",
    ),
    BriefFigure(
        "DistServe: throughput 1.8x, +80%",
        f"{PROSE}, {TABLE_2}",
        "distserve",
        "consistent in the brief; the paper: up to 7.4x the rate under an objective",
    ),
    BriefFigure(
        "Prefill suits tensor parallelism, decode data parallelism",
        "table of the two phases",
        "distserve",
        "as in the placement for OPT-13B; larger models' decodes are split too, for their memory",
    ),
    BriefFigure(
        "Mooncake, 128 GPUs: utilization +35%",
        f"{PROSE}, {TABLE_1}",
        "mooncake",
        "not in the paper, whose figures are capacity +59 to +498% and prefill time -36 to -64%",
    ),
    BriefFigure(
        "Mooncake: queueing delay -60%",
        f"{PROSE}, {TABLE_2}",
        "mooncake",
        "not in the paper; mean time to first token falls by 42% against load balancing",
    ),
    BriefFigure("Mooncake: throughput +35%", TABLE_2, "mooncake", "the 35% of utilization, told as throughput"),
    BriefFigure(
        "SARATHI raises GPU utilization from 45% to 85%",
        PROSE,
        "sarathi",
        "in neither paper; 85/45 is 1.89, so it is the 1.9x again, told as utilization",
    ),
    BriefFigure(
        "SARATHI: throughput 1.9x, +90%",
        f"{PROSE}, both tables",
        "sarathi",
        "consistent in the brief, which says Mixtral-8x7B; the paper: GPT-3, pipeline parallel, simulated",
    ),
    BriefFigure(
        "SARATHI: overall latency -40%",
        TABLE_2,
        "sarathi",
        "in one table only, without saying of what; 1.9x throughput of a batch would be -47%",
    ),
    BriefFigure(
        "SARATHI removes the padding of prompts of different length",
        PROSE,
        "sarathi",
        "padding is a matter of static batches; what the papers remove are stalls of decodes and pipeline bubbles",
    ),
    BriefFigure("SGLang: KV cache hit share up to 85%", PROSE, "radix", "inside the paper's range of 50 to 99%"),
    BriefFigure(
        "SGLang: inference 2.3x faster, +130%",
        f"{PROSE}, both tables",
        "radix",
        "consistent; the paper says up to 6.4x",
    ),
    BriefFigure(
        "SGLang: time to the first token -55%",
        TABLE_2,
        "radix",
        "in one table only; the paper's production figure is -41%",
    ),
    BriefFigure("SGLang: KV cache -70%", TABLE_2, "radix", "in one table only, and not in the paper: the load decides"),
    BriefFigure(
        "FlashAttention: 2-4x, +100-300%, latency -50-75%",
        f"{TABLE_1}, {TABLE_2}",
        "flash",
        "three ways of saying 2-4x",
    ),
    BriefFigure(
        "FlashAttention: memory -60-80%",
        TABLE_2,
        "flash",
        "the paper says linear instead of quadratic: the share depends on the length, so no fixed share is right",
    ),
    BriefFigure(
        "PagedAttention: 2-4x concurrency",
        TABLE_1,
        "paged",
        "the paper's 2-4x is throughput at equal latency; its batches hold 2.2x and 4.3x more requests",
    ),
    BriefFigure(
        "PagedAttention: throughput +100-300%",
        TABLE_2,
        "paged",
        "the same 2-4x, now as throughput rather than concurrency",
    ),
    BriefFigure(
        "PagedAttention: memory utilization rises", TABLE_2, "paged", "without a figure; the paper: waste < 4%"
    ),
    BriefFigure(
        "DeepSpeed-FastGen unifies prefill and decode in micro-batches",
        PROSE,
        "fastgen",
        "without a figure in the brief",
    ),
    BriefFigure("TensorRT-LLM integrates many kernel optimizations", PROSE, "kernels", "without a figure in the brief"),
    BriefFigure(
        "Continuous batching raises throughput", "advice", "continuous-batching", "without a figure in the brief"
    ),
    BriefFigure("GQA makes the KV cache smaller", "advice", "gqa", "without a figure in the brief"),
    BriefFigure("Quantization takes less memory and computing", "advice", "quant", "without a figure in the brief"),
    BriefFigure(
        "Decode is bound by communication",
        "table of the two phases",
        "gqa",
        "on one node it is bound by reading weights and KV from memory, as the brief says itself one sentence later",
    ),
)


def brief_lines() -> Iterator[str]:
    """A section of Markdown."""
    yield "## The brief, figure by figure"
    yield ""
    yield "Its figures for DistServe and Mooncake are about clusters: they are answered by simulation."
    yield ""
    yield "| the brief | where | answered by | remark |"
    yield "| --- | --- | --- | --- |"
    for figure in BRIEF_FIGURES:
        yield f"| {figure.claim} | {figure.place} | `{figure.repro}` | {figure.remark} |"
