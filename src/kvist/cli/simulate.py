"""Run a load through a simulated cluster: the schedulers, caches and router that serve, with simulated steps and links.

--workload is the name of a load that ships with kvist or the file of a recorded trace. --config describes the cluster
(see docs/simulator.md); --replicas, --roles, --router and --policy change it. The result has the fields of `kvist bench
serve`, in virtual time; the same input gives the same result on every machine.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.cli.simulate_cluster import add_cluster_arguments, cluster_and_step_times
from kvist.cli.simulate_load import add_load_arguments, simulated_load
from kvist.cli.simulate_output import result_lines, write_report
from kvist.config.cluster_config import ClusterConfig
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.report.svg_figure import require_plots
from kvist.report.written_file import whole_file
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.simulated_benchmark import simulated_benchmark
from kvist.simulator.simulation_result import SimulationResult
from kvist.simulator.simulation_trace import SimulationTrace
from kvist.workload.trace_record import TraceRecord

QUICK_REQUESTS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cluster, the load and where results go."""
    add_cluster_arguments(parser)
    add_load_arguments(parser)
    add_output_arguments(parser, model=False)
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write every step and request here, for Perfetto or chrome://tracing"
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print the result and write what was asked for."""
    check_output_files(arguments, "trace")
    gc.disable()  # nothing here makes cycles, and a long trace leaves millions of objects to look through
    if arguments.report is not None:
        require_plots()  # before the work, not after it
    config, step_times = cluster_and_step_times(arguments)
    if arguments.quick:
        arguments.num_prompts = min(arguments.num_prompts or QUICK_REQUESTS, QUICK_REQUESTS)
    records = simulated_load(arguments, config, step_times)
    result = _simulate(config, records, step_times, arguments.trace)
    setup: dict[str, Any] = {  # Any: what JSON holds
        "workload": str(arguments.workload),
        "num_prompts": len(records),
        "router": config.router.policy,
        "replica_groups": [f"{group.count} x {group.name}" for group in config.groups],
    }
    document = result_document("simulate", simulated_benchmark(result, config, setup))
    print("\n".join(result_lines(document)))
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        write_report(arguments.report, document, result)
    return 0


def _simulate(
    config: ClusterConfig,
    records: Sequence[TraceRecord],
    step_times: Mapping[str, StepTimeModel],
    trace_file: Path | None,
) -> SimulationResult:
    if trace_file is None:
        return simulate(config, records, step_times)
    with whole_file(trace_file) as file:
        trace = SimulationTrace(config, file.write)
        result = simulate(config, records, step_times, observer=trace)
        trace.end()
    return result
