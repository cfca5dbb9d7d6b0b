"""The load that `kvist simulate` plays: a named one or a recorded one, at the rate asked for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from kvist.cli.named_workload import find_workload, workload_names
from kvist.config.arguments import number, whole_number
from kvist.config.cluster_config import ClusterConfig
from kvist.core.errors import ConfigError
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.links import NS_PER_S
from kvist.workload.adapting import all_at_once, at_mean_rate, scale_lengths
from kvist.workload.load_file import Load
from kvist.workload.trace_record import TraceRecord


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load options")
    names = ", ".join(workload_names())
    group.add_argument("--workload", required=True, metavar="NAME|TRACE", help=f"a trace file, or one of {names}")
    group.add_argument(
        "--num-prompts", type=whole_number("--num-prompts", low=1), metavar="N", help="only the first N requests"
    )
    add_scale_lengths(group)
    group.add_argument(
        "--request-rate",
        type=number("--request-rate", low=1e-9),
        metavar="R",
        help="mean requests per second; default: the trace's own, or a named load's share of the capacity",
    )
    group.add_argument(
        "--capacity",
        type=number("--capacity", low=1e-9),
        metavar="R",
        help="requests per second that a named load's rate is a share of; default: simulated with all at once",
    )
    group.add_argument("--seed", type=whole_number("--seed", low=0), metavar="N", help="other draws of a named load")
    group.add_argument(
        "--trace-block-tokens",
        type=whole_number("--trace-block-tokens", low=1),
        metavar="N",
        help="tokens per block id of a trace (default: what fits its lengths)",
    )


def add_scale_lengths(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--scale-lengths",
        type=number("--scale-lengths", low=1e-6),
        default=1.0,
        metavar="X",
        help="multiply the lengths of prompts and answers",
    )


def simulated_load(
    arguments: argparse.Namespace, config: ClusterConfig, step_times: Mapping[str, StepTimeModel]
) -> list[TraceRecord]:
    """The requests, in order of their numbers. Raises ConfigError."""
    found = find_workload(arguments.workload, block_tokens=arguments.trace_block_tokens)
    if isinstance(found, Load):
        capacity = arguments.capacity
        if capacity is None:
            drawn = found.records(capacity_per_s=1.0, seed=arguments.seed)
            capacity = _capacity(scale_lengths(drawn, arguments.scale_lengths), config, step_times)
        found = found.records(capacity_per_s=capacity, seed=arguments.seed)
    records = found[: arguments.num_prompts]  # whom a request follows comes before it
    if not records:
        raise ConfigError(f"the load {arguments.workload} draws no request")
    records = scale_lengths(records, arguments.scale_lengths)
    return records if arguments.request_rate is None else at_mean_rate(records, arguments.request_rate)


def _capacity(records: Sequence[TraceRecord], config: ClusterConfig, step_times: Mapping[str, StepTimeModel]) -> float:
    """Requests per second that the cluster completes when all come at once."""
    return len(records) / max(simulate(config, all_at_once(records), step_times).end_ns / NS_PER_S, 1e-9)
