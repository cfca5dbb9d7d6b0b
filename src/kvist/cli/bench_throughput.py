"""Time an engine in this process on a whole load at once: requests and tokens per second.

Without a load of kvist's (--load) or a recorded one (--dataset-path), prompts are real text of random lengths.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvist.bench.load_source import Requests
from kvist.bench.offline import OfflineBench, TimedBatch, time_throughput
from kvist.cli.load_arguments import add_load_arguments, chosen_requests
from kvist.cli.load_display import load_display
from kvist.cli.local_engine import start_local_llm
from kvist.cli.model_source import add_model_arguments
from kvist.cli.output_arguments import (
    add_output_arguments,
    check_output_files,
    result_document,
    write_json,
)
from kvist.config.arguments import add_config_arguments, whole_number
from kvist.config.load import ENGINE_SECTIONS, load_configs
from kvist.report import Report, bar_plot, page_facts

Document = dict[str, Any]  # Any: what JSON holds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_load_arguments(parser, rates=False)
    parser.add_argument(
        "--repeats", type=whole_number("--repeats", low=1), default=3, metavar="N", help="batches (default: 3)"
    )
    add_output_arguments(parser, model=False)
    add_config_arguments(parser, ENGINE_SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments)
    requests = chosen_requests(arguments)
    repeats = 1 if arguments.quick else arguments.repeats
    model = load_configs(arguments, ENGINE_SECTIONS)["model"].model
    with start_local_llm(arguments) as llm, load_display() as display:
        bench = OfflineBench(llm, temperature=requests.source.temperature)
        batches = time_throughput(bench, requests, requests.source.seed, repeats, display.phase)
    result = throughput_result(batches, requests, model)
    document = result_document("bench throughput", result, repeats=repeats)
    print(
        f"{document['model_id']}, load {document['load']}: {document['requests_per_second']:.3f} requests/s,"
        f" {document['tokens_per_second']:.1f} tokens/s, {document['output_tokens_per_second']:.1f} output tokens/s"
        f" (median of {repeats}; output {document['rows'][0]['min']:.1f} to {document['rows'][0]['max']:.1f})"
    )
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        _write_report(arguments.report, document)
    return 0


def throughput_result(batches: Sequence[TimedBatch], requests: Requests, model: str) -> Document:
    """vLLM's fields, of the median batch, and a row of each rate over all batches."""
    outputs = [batch.num_output_tokens / batch.elapsed_s for batch in batches]
    totals = [(batch.num_prompt_tokens + batch.num_output_tokens) / batch.elapsed_s for batch in batches]
    rates = [batch.num_requests / batch.elapsed_s for batch in batches]
    return {
        "model_id": model,
        "load": requests.source.name,
        "elapsed_time": statistics.median(batch.elapsed_s for batch in batches),
        "num_requests": batches[0].num_requests,
        "total_num_tokens": batches[0].num_prompt_tokens + batches[0].num_output_tokens,
        "requests_per_second": statistics.median(rates),
        "tokens_per_second": statistics.median(totals),
        "output_tokens_per_second": statistics.median(outputs),
        "cache_hit_share": sum(b.num_cached_tokens for b in batches) / sum(b.num_prompt_tokens for b in batches),
        "rows": [
            row("output_tokens_per_second", outputs),
            row("tokens_per_second", totals),
            row("requests_per_second", rates),
        ],
    }


def row(name: str, values: Sequence[float]) -> Document:
    """One figure over its repeats."""
    return {
        "name": name,
        "measured": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": list(values),
    }


def _write_report(path: Path, document: Document) -> None:
    report = Report(f"{document['model_id']}: throughput on {document['load']}", facts=page_facts(document))
    rows = [(row["name"], row["measured"], row["min"], row["max"]) for row in document["rows"]]
    report.add_table(("", "median", "min", "max"), rows)
    values = document["rows"][0]["values"]
    report.add_plot(
        bar_plot("Output tokens/s", [str(i + 1) for i in range(len(values))], {"repeat": values}, y_label="tokens/s")
    )
    report.write(path)
