"""The kernel benchmark's answer as a table and as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kvist.cli.units import format_bytes

if TYPE_CHECKING:
    from kvist.bench.kernel_run import TimedKernels
    from kvist.bench.kernels import Case, KernelTime
    from kvist.execution.native.traced_plan import PlannedOperation

HEADINGS = f"  {'kernel':<44} {'x':>3} {'us':>9} {'step':>6} {'GOP/s':>7} {'GB/s':>6}  {'bound':<5} {'share':>5}  gap"


def timed_lines(timed: TimedKernels) -> list[str]:
    ceilings = timed.ceilings
    lines = [
        f"{ceilings.isa} kernels, {timed.num_threads} threads, KV {timed.kv_dtype}. Ceilings of this machine:",
        f"  read {ceilings.memory_gb_per_s:.1f} GB/s from memory, {ceilings.resident_gb_per_s:.1f} GB/s over"
        f" {format_bytes(ceilings.resident_bytes)}, the model's weights;"
        f" int8 products {ceilings.int8_gop_per_s:.0f} GOP/s, fp32 {ceilings.fp32_gop_per_s:.0f} GFLOP/s"
        + (f", bf16 {ceilings.bf16_gop_per_s:.0f} GFLOP/s" if ceilings.bf16_gop_per_s else ""),
    ]
    for case, kernels in groupby(timed.kernels, key=lambda kernel: kernel.case):
        lines += ["", _case_title(case), HEADINGS, *_rows(kernels)]
    if timed.left_out:
        lines += ["", f"Left out, for their KV is too large: {'; '.join(map(_case_title, timed.left_out))}"]
    return lines


def timed_json(timed: TimedKernels) -> dict[str, Any]:
    return {
        "num_threads": timed.num_threads,
        "kv_dtype": timed.kv_dtype,
        "ceilings": asdict(timed.ceilings),
        "kernels": [
            asdict(kernel) | {"gop_per_s": kernel.gop_per_s, "gb_per_s": kernel.gb_per_s} for kernel in timed.kernels
        ],
        "left_out": [asdict(case) for case in timed.left_out],
    }


def _case_title(case: Case) -> str:
    if case.num_tokens == case.context == 1:
        return f"{case.num_rows} rows"
    each = "a decode" if case.num_tokens == 1 else f"a chunk of {case.num_tokens}"
    return f"{case.num_requests} x {each} after {case.context - case.num_tokens} tokens"


def _rows(kernels: Iterable[KernelTime]) -> Iterator[str]:
    """The slowest first: what counts is on top."""
    for kernel in sorted(kernels, key=lambda kernel: -kernel.step_share):
        work = f"{'':>7} {'':>6}  {'':<5} {'':>5}"
        gap = ""
        if kernel.share is not None:
            work = f"{kernel.gop_per_s:>7.1f} {kernel.gb_per_s:>6.2f}  {kernel.limit:<5} {kernel.share:>5.0%}"
            gap = f"  {1 / kernel.share:.1f}x"
        name = operation_name(kernel.operation)
        taken = f"{1e6 * kernel.time_s:>9.1f} {kernel.step_share:>6.1%}"
        yield f"  {name:<44} {kernel.count:>3} {taken} {work}{gap}".rstrip()


def operation_name(operation: PlannedOperation) -> str:
    """Its name, and for products their shape: of all fused parts together."""
    if not operation.weights or operation.name == "embed":
        return operation.name
    first = operation.weights[0]
    outputs = sum(weight.num_outputs for weight in operation.weights)
    formats = "/".join(dict.fromkeys(weight.format for weight in operation.weights))
    is_expert = operation.name.startswith("expert")
    shape = f"{len(operation.weights)} of {first.num_outputs}" if is_expert else f"{outputs}"
    return f"{operation.name} {shape} x {first.width} {formats}"
