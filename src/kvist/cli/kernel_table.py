"""The kernel benchmark's answer as a table, as plain data and as sections of a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kvist.cli.units import format_bytes
from kvist.report import Report, bar_plot

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


def kernels_result(model_id: str, answers: Sequence[TimedKernels]) -> dict[str, Any]:
    """What the result's file holds. rows: of each kernel and case its best repeat, with how much longer the median was
    as `spread`. Any: JSON.
    """
    return {
        "model_id": model_id,
        "setup": {answer.ceilings.isa: _setup_json(answer) for answer in answers},
        "rows": [_row_json(answer.ceilings.isa, kernel) for answer in answers for kernel in answer.kernels],
    }


def _setup_json(timed: TimedKernels) -> dict[str, Any]:
    return {
        "num_threads": timed.num_threads,
        "kv_dtype": timed.kv_dtype,
        "ceilings": asdict(timed.ceilings),
        "left_out": [asdict(case) for case in timed.left_out],
    }


def _row_json(isa: str, kernel: KernelTime) -> dict[str, Any]:
    return {
        "name": f"{isa}, {_case_title(kernel.case)}: {operation_name(kernel.operation)}, time_s",
        "measured": kernel.time_s,
        "spread": kernel.median_s / kernel.time_s - 1.0,
        "isa": isa,
        **asdict(kernel),
        "gop_per_s": kernel.gop_per_s,
        "gb_per_s": kernel.gb_per_s,
    }


def add_timed(report: Report, timed: TimedKernels) -> None:
    """Add the ceilings, and for each case what its kernels took and how near each comes to its ceiling."""
    report.add_heading(f"{timed.ceilings.isa} kernels, {timed.num_threads} threads, KV {timed.kv_dtype}")
    report.add_table(("ceiling", "of this machine"), list(asdict(timed.ceilings).items()))
    for case, group in groupby(timed.kernels, key=lambda kernel: kernel.case):
        kernels = sorted(group, key=lambda kernel: -kernel.step_share)
        report.add_table(
            (
                "kernel",
                "times",
                "us",
                "median us",
                "share of the step",
                "GOP/s",
                "GB/s",
                "bound",
                "share of its ceiling",
            ),
            [
                (
                    operation_name(kernel.operation),
                    kernel.count,
                    1e6 * kernel.time_s,
                    1e6 * kernel.median_s,
                    f"{kernel.step_share:.1%}",
                    kernel.gop_per_s if kernel.ops else None,
                    kernel.gb_per_s if kernel.ops else None,
                    kernel.limit,
                    None if kernel.share is None else f"{kernel.share:.0%}",
                )
                for kernel in kernels
            ],
            caption=_case_title(case),
        )
        bounded = {operation_name(kernel.operation): kernel.share for kernel in kernels if kernel.share is not None}
        if bounded:
            title = f"{timed.ceilings.isa}, {_case_title(case)}"
            series = {"of its ceiling": [100.0 * share for share in bounded.values()]}
            report.add_plot(bar_plot(title, list(bounded), series, y_label="%"))
    if timed.left_out:
        report.add_text(f"Left out, for their KV is too large: {'; '.join(map(_case_title, timed.left_out))}")


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
