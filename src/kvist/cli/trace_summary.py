"""Sum up a step trace: how its time divides into prefill, decode and mixed steps, their kernels, and idling."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.metrics.trace_reader import read_events, read_steps
from kvist.metrics.trace_summary import KindSummary, TraceSummary, summarize_steps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file, and where the summary goes besides."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a trace that --trace has written")
    add_output_arguments(parser, model=False, quick=False)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments)
    with arguments.file.open(encoding="utf-8", errors="replace") as lines:
        summary = summarize_steps(read_steps(read_events(lines)))
    print("\n".join(summary_lines(summary)))
    document = result_document("trace summary", {"trace": str(arguments.file), **asdict(summary)})
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        # Here, because a summary on the terminal must not wait for what draws.
        from kvist.bench.trace_report import add_trace
        from kvist.report import Report

        report = Report(f"Trace: {arguments.file.stem}", facts={"command": document["command"]})
        add_trace(report, arguments.file)
        report.write(arguments.report)
    return 0


def summary_lines(summary: TraceSummary) -> Iterator[str]:
    """A table of step kinds, then one of operations for each kind of which some steps were timed."""
    wall_s = summary.wall_s
    yield f"{'':<10}{'steps':>9}{'seconds':>10}{'share':>8}{'p50 ms':>9}{'p99 ms':>9}{'decode':>10}{'prefill':>10}"
    for kind in summary.kinds:
        yield (
            f"{kind.kind:<10}{kind.num_steps:>9,}{kind.total_s:>10.2f}{_share(kind.total_s, wall_s):>8}"
            f"{kind.median_s * 1e3:>9.2f}{kind.p99_s * 1e3:>9.2f}"
            f"{kind.num_decode_tokens:>10,}{kind.num_prefill_tokens:>10,}"
        )
    yield f"{'idle':<10}{'':>9}{summary.idle_s:>10.2f}{_share(summary.idle_s, wall_s):>8}"
    engines = f" of {summary.num_engines} engines" if summary.num_engines > 1 else ""
    yield f"{'in all':<10}{sum(kind.num_steps for kind in summary.kinds):>9,}{wall_s:>10.2f}{engines}"
    for kind in summary.kinds:
        if kind.num_timed:
            yield ""
            yield from _operation_lines(kind)
    if not any(kind.num_timed for kind in summary.kinds):
        yield ""
        yield "No step's kernels were timed (--trace-operations-every, and the native executor)."


def _operation_lines(kind: KindSummary) -> Iterator[str]:
    yield f"{kind.kind} steps, kernels of {kind.num_timed:,} of {kind.num_steps:,}: ms per step"
    width = max(map(len, kind.operations_s))
    for name, seconds in kind.operations_s.items():
        yield f"  {name:<{width}}{seconds / kind.num_timed * 1e3:>10.3f}{_share(seconds, kind.timed_s):>8}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
