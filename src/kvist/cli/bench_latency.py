"""Time an engine in this process on single batches of equal requests: how long each takes from start to end."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from kvist.bench.offline import OfflineBench, TimedBatch, time_latency
from kvist.cli.bench_throughput import row
from kvist.cli.load_display import load_display
from kvist.cli.local_engine import start_local_llm
from kvist.cli.model_source import add_model_arguments
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.config.arguments import add_config_arguments, whole_number
from kvist.config.load import ENGINE_SECTIONS, load_configs
from kvist.metrics.percentiles import mean, percentile
from kvist.report import Report, cdf_plot, page_facts

PERCENTILES = (10, 25, 50, 75, 90, 99)
QUICK_ITERATIONS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_config_arguments(parser, ENGINE_SECTIONS)
    # --batch-size is vLLM's flag of this command, and elsewhere llama-server's name for --max-num-batched-tokens.
    group = parser.add_argument_group("batch options", conflict_handler="resolve")
    for flag, default, low, text in (
        ("--input-len", 32, 1, "tokens of a prompt"),
        ("--output-len", 128, 1, "tokens of an answer"),
        ("--batch-size", 8, 1, "requests of a batch"),
        ("--num-iters-warmup", 2, 0, "batches that do not count"),
        ("--num-iters", 10, 1, "batches that do"),
    ):
        kind = whole_number(flag, low=low)
        group.add_argument(flag, type=kind, default=default, metavar="N", help=f"{text} (default: {default})")
    add_output_arguments(parser, model=False)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments)
    repeats = min(arguments.num_iters, QUICK_ITERATIONS) if arguments.quick else arguments.num_iters
    model = load_configs(arguments, ENGINE_SECTIONS)["model"].model
    with start_local_llm(arguments) as llm, load_display() as display:
        batches = time_latency(
            OfflineBench(llm),
            batch_size=arguments.batch_size,
            input_len=arguments.input_len,
            output_len=arguments.output_len,
            num_warm_up=arguments.num_iters_warmup,
            repeats=repeats,
            show=display.phase,
        )
    sizes = {name: getattr(arguments, name) for name in ("batch_size", "input_len", "output_len")}
    document = result_document(
        "bench latency", {"model_id": model, **sizes, **latency_result(batches)}, repeats=repeats
    )
    rising = sorted(document["latencies"])
    print(
        f"{model}, {arguments.batch_size} x {arguments.input_len} in, {arguments.output_len} out:"
        f" {document['avg_latency']:.3f} s on average of {repeats}; "
        + ", ".join(f"P{percent} {percentile(rising, percent):.3f} s" for percent in (10, 50, 90))
        + f"; TTFT {document['rows'][1]['measured'] * 1e3:.1f} ms"
    )
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        report = Report(f"{model}: latency of a batch", facts=page_facts(document, *FACTS))
        report.add_plot(cdf_plot("Latency of a batch", {"batches": rising}, x_label="seconds"))
        report.write(arguments.report)
    return 0


FACTS = ("batch_size", "input_len", "output_len")


def latency_result(batches: Sequence[TimedBatch]) -> dict[str, Any]:
    """vLLM's fields, in seconds, and a row each for latency, TTFT (median of a batch) and output rate."""
    latencies = [batch.elapsed_s for batch in batches]
    rising = sorted(latencies)
    return {
        "avg_latency": mean(latencies),
        "latencies": latencies,
        "percentiles": {str(percent): percentile(rising, percent) for percent in PERCENTILES},
        "rows": [
            row("latency_s", latencies),
            row("ttft_s", [statistics.median(batch.ttfts_s) for batch in batches]),
            row("output_tokens_per_second", [batch.num_output_tokens / batch.elapsed_s for batch in batches]),
        ],
    }
