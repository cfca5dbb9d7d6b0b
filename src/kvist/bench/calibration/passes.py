"""Points that are sums of forward passes: what passes a row stands for, and the number that its metric asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvist.bench.calibration.points import Point
from kvist.costmodel.roofline import RooflineModel
from kvist.costmodel.step_work import StepWork

PASS_KINDS = ("prefill", "decode", "hybrid", "chunked-prefill", "linears_only", "static-batch", "throughput")
MAX_PREFILL_TOKENS = 8192  # of a static batch, in one pass
MAX_CHUNKS = 10_000  # of one prompt
MAX_HYBRID_TOKENS = 1_000_000  # of a kind
NUM_DECODE_SAMPLES = 8  # passes that stand for all of a static batch's


def predict_passes(point: Point, model: RooflineModel) -> float | None:
    """The metric of `point` in its unit; None for a metric that is no sum of passes."""
    if point.kind in PASS_KINDS and point.kind != "throughput" and not point.metric.endswith("_ms"):
        return None
    if point.kind == "linears_only":
        return 1e3 * model.device_s(StepWork.of([(point.batch, 0)], num_sampled=0))
    if point.kind == "throughput":
        return _throughput(point, model)
    if point.kind == "static-batch":
        return 1e3 * _static_batch_s(point, model)
    if point.kind in PASS_KINDS:
        return 1e3 * sum(model.predict_s(work) for work in passes(point))
    return None


def passes(point: Point) -> Iterable[StepWork]:
    """The passes of a prefill, decode, hybrid or chunked-prefill row."""
    batch = max(1, point.batch)
    if point.kind == "decode":
        return [StepWork.of_equal(batch, 1, point.context_len, num_sampled=batch)]
    if point.kind == "hybrid":
        return [_hybrid(point)]
    length = max(1, point.input_len)
    if point.kind == "chunked-prefill":
        chunk = max(point.chunk_len or length, -(-length // MAX_CHUNKS))
        starts = range(0, length, chunk)
        return [
            StepWork.of_equal(
                batch, min(chunk, length - start), start, num_sampled=batch if start + chunk >= length else 0
            )
            for start in starts
        ]
    return [StepWork.of_equal(batch, length, point.context_len, num_sampled=batch)]


def _hybrid(point: Point) -> StepWork:
    """`batch` is all tokens of the pass, or the note says how many are of each kind."""
    said = re.search(r"(\d+) prefill tokens? \+ (\d+) decode", point.note)
    num_prefill = int(said[1]) if said else min(point.input_len, point.batch)
    num_decode = int(said[2]) if said else max(0, point.batch - point.input_len)
    if max(num_prefill, num_decode) > MAX_HYBRID_TOKENS:
        raise ValueError(f"a pass of {num_prefill} and {num_decode} tokens")
    chunks = [(1, point.context_len)] * num_decode
    if num_prefill:
        chunks.append((num_prefill, 0))
    return StepWork.of(chunks, num_sampled=len(chunks))


def _static_batch_s(point: Point, model: RooflineModel) -> float:
    """A batch from start to end: prompts in passes of bounded size, then one pass for each further token."""
    batch, length, num_outputs = max(1, point.batch), max(1, point.input_len), max(1, point.output_len)
    per_pass = max(1, MAX_PREFILL_TOKENS // length)
    prefill_s = 0.0
    for first in range(0, batch, per_pass):
        number = min(per_pass, batch - first)
        prefill_s += model.predict_s(StepWork.of_equal(number, length, 0, num_sampled=number))
    samples = [length + (2 * i + 1) * num_outputs // (2 * NUM_DECODE_SAMPLES) for i in range(NUM_DECODE_SAMPLES)]
    decode_s = sum(model.predict_s(StepWork.of_equal(batch, 1, context, num_sampled=batch)) for context in samples)
    return prefill_s + (num_outputs - 1) * decode_s / NUM_DECODE_SAMPLES


def _throughput(point: Point, model: RooflineModel) -> float | None:
    if point.metric != "static_batch_out_tok_s_per_gpu":
        return None
    return point.batch * point.output_len / _static_batch_s(point, model) / point.tensor_parallel_size
