"""Times each operation of a model's native plan beside the machine's ceilings."""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from kvist.bench.ceilings import Ceilings
from kvist.core.model_spec import ModelSpec
from kvist.core.step_plan import BlockMove, BlockMoveKind
from kvist.execution.native.plan_description import attention_ops_per_token_and_key, ops_per_token, weight_bytes
from kvist.execution.native.runner import NativeRunner
from kvist.execution.native.traced_plan import PlannedOperation
from kvist.execution.step_batch import StepBatch, build_batch

ENOUGH_S = 0.3  # of repeats, after which the best is taken
MIN_REPEATS = 2
MAX_FILL_TOKENS = 64  # written by a step of their own, then copied
# Per number of an activation, by what is multiplied; int8 with its share of scales and sums.
ROW_BYTES = {"int8": 1.5, "bf16": 2.0, "fp32": 4.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One batch: `num_requests` chunks of `num_tokens` tokens, each at the end of `context` tokens.

    Raises ValueError for a context that does not hold the chunk.
    """

    num_requests: int
    num_tokens: int
    context: int

    def __post_init__(self) -> None:
        if not self.num_tokens <= self.context:
            raise ValueError(f"a context of {self.context} tokens does not end with {self.num_tokens} of them")

    @property
    def num_rows(self) -> int:
        return self.num_requests * self.num_tokens

    @property
    def num_kv_tokens(self) -> int:
        return self.num_requests * self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What tells the work of attention, and what quantized linears multiply ("int8" or "bf16").

    kv_vector_bytes: of one token's K (or V) of one head. attention_products: as linear_products, or "fp32".
    """

    spec: ModelSpec
    kv_vector_bytes: int
    attention_products: str
    linear_products: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One kind of operation in one case, its mean over the plan: time_s at the best repeat, median_s at the median one.

    products: what it multiplies ("int8", "bf16", "fp32"). limit: what bounds it at best, "read" or its products; share:
    the time at that ceiling over the time taken. Both are None until `rated`, and for operations without products.
    step_share: of all operations' time.
    """

    operation: PlannedOperation
    count: int
    case: Case
    time_s: float
    median_s: float
    step_share: float
    ops: int
    num_bytes: int
    products: str
    limit: str | None = None
    share: float | None = None

    @property
    def gop_per_s(self) -> float:
        return self.ops / self.time_s / 1e9

    @property
    def gb_per_s(self) -> float:
        return self.num_bytes / self.time_s / 1e9


def time_linears(runner: NativeRunner, setting: Setting, num_rows: int) -> list[KernelTime]:
    """All operations but attention, on `num_rows` rows that each begin a request."""
    case = Case(num_requests=num_rows, num_tokens=1, context=1)
    return [kernel for kernel in _time(runner, setting, case) if not is_attention(kernel.operation)]


def time_attention(runner: NativeRunner, setting: Setting, case: Case) -> list[KernelTime]:
    """Attention, over KV that stands in blocks of its own for each request."""
    return [kernel for kernel in _time(runner, setting, case) if is_attention(kernel.operation)]


def is_attention(operation: PlannedOperation) -> bool:
    return "attention" in operation.name or operation.name.startswith("rope")


def fill_kv(runner: NativeRunner, num_tokens: int) -> None:
    """Write real keys and values to the first blocks and copy them to all that `num_tokens` tokens take."""
    size = runner.block_size
    written = min(num_tokens, MAX_FILL_TOKENS)
    _run(runner, _batch(runner, Case(num_requests=1, num_tokens=written, context=written)), is_timed=False)
    sources, num_blocks = max(written // size, 1), -(-num_tokens // size)
    runner.move([BlockMove(BlockMoveKind.COPY, b % sources, b, size) for b in range(sources, num_blocks)])


def _time(runner: NativeRunner, setting: Setting, case: Case) -> list[KernelTime]:
    batch = _batch(runner, case)
    description = runner.describe()
    operations = [*description.body, *description.head]
    members: dict[PlannedOperation, list[int]] = defaultdict(list)
    for i, operation in enumerate(operations):
        members[operation].append(i)
    repeats = _repeat(runner, batch)
    times = {key: repeats[:, which].mean(axis=1) for key, which in members.items()}
    whole = sum(float(times[key].min()) * len(which) for key, which in members.items())
    return [
        _kernel_time(key, times[key], case, setting, count=len(which), step_s=whole) for key, which in members.items()
    ]


def _repeat(runner: NativeRunner, batch: StepBatch) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[repeats, operations] of seconds."""
    _run(runner, batch, is_timed=False)
    rows: list[list[float]] = []
    start = time.perf_counter()
    while len(rows) < MIN_REPEATS or time.perf_counter() - start < ENOUGH_S:
        before = [seconds for _, seconds in runner.timings()]
        _run(runner, batch, is_timed=True)
        rows.append([after - since for (_, after), since in zip(runner.timings(), before, strict=True)])
    return np.array(rows)


def _run(runner: NativeRunner, batch: StepBatch, *, is_timed: bool) -> None:
    last_rows = np.array([chunk.first_row + chunk.num_tokens - 1 for chunk in batch.chunks], np.int64)
    runner.run(batch, last_rows, lambda *_: None, timed=is_timed)


def _batch(runner: NativeRunner, case: Case) -> StepBatch:
    num_blocks = -(-case.context // runner.block_size)
    token_ids = [(31 * i + 7) % 256 for i in range(case.num_tokens)]
    tables = np.arange(case.num_requests * num_blocks).reshape(case.num_requests, num_blocks) % runner.num_blocks
    rows = [(token_ids, case.context - case.num_tokens, array("i", table.tolist())) for table in tables]
    return build_batch(rows, block_size=runner.block_size, num_padding_tokens=0)


def _kernel_time(
    operation: PlannedOperation,
    times: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    case: Case,
    setting: Setting,
    *,
    count: int,
    step_s: float,
) -> KernelTime:
    time_s = float(times.min())
    ops, num_bytes, products = 0, 0, "fp32"
    if operation.name == "attention":
        ops, num_bytes = _attention_work(case, setting)
        products = setting.attention_products
    elif work := ops_per_token(operation, setting.spec):
        ops = work * case.num_rows
        on_floats = ("F32",) if setting.linear_products == "bf16" else ("F32", "F16", "BF16")
        if operation.name != "linear_dense" and operation.weights[0].format not in on_floats:
            products = setting.linear_products
        num_bytes = _linear_bytes(operation, case.num_rows, ROW_BYTES[products])
    return KernelTime(
        operation=operation,
        count=count,
        case=case,
        time_s=time_s,
        median_s=float(np.median(times)),
        step_share=time_s * count / step_s,
        ops=ops,
        num_bytes=num_bytes,
        products=products,
    )


def rated(kernel: KernelTime, ceilings: Ceilings) -> KernelTime:
    """Say what bounds the kernel at best, reading its bytes or doing its products, and how near it comes."""
    if not kernel.ops:
        return kernel
    read_s = kernel.num_bytes / ceilings.resident_gb_per_s / 1e9
    gop_per_s = {"int8": ceilings.int8_gop_per_s, "bf16": ceilings.bf16_gop_per_s, "fp32": ceilings.fp32_gop_per_s}
    products_s = kernel.ops / gop_per_s[kernel.products] / 1e9
    limit = "read" if read_s > products_s else kernel.products
    return replace(kernel, limit=limit, share=max(read_s, products_s) / kernel.time_s)


def _linear_bytes(operation: PlannedOperation, num_rows: int, bytes_per_input: float) -> int:
    """Weights once, rows in and out."""
    weights = operation.weights
    outputs = sum(weight.num_outputs for weight in weights)
    row_bytes = weights[0].width * bytes_per_input + 4 * outputs
    return weight_bytes(operation) + int(num_rows * row_bytes)


def _attention_work(case: Case, setting: Setting) -> tuple[int, int]:
    """Operations and KV bytes of a layer, averaged over layers that look back differently far."""
    spec = setting.spec
    first = case.context - case.num_tokens
    ops, num_bytes = [], []
    for layer in spec.layers:
        window = layer.sliding_window or case.context
        keys = sum(min(position + 1, window) for position in range(first, case.context))
        ops.append(attention_ops_per_token_and_key(spec) * keys * case.num_requests)
        seen = min(case.context, window + case.num_tokens)
        num_bytes.append(2 * spec.num_kv_heads * setting.kv_vector_bytes * seen * case.num_requests)
    return sum(ops) // len(ops), sum(num_bytes) // len(num_bytes)
