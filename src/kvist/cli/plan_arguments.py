"""What `kvist plan` and `kvist advise` are asked: a model, devices, a load and an objective."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from kvist.cli.cost_arguments import DEFAULT_DEVICE, DEFAULT_MODEL, read_model_spec
from kvist.config.arguments import number, whole_number
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.costmodel.device_catalogue import DEVICES, find_device
from kvist.costmodel.engine_generation import CURRENT, engine_generation
from kvist.planner.bounds import load_facts
from kvist.planner.candidate import GIGA, Deployment
from kvist.planner.evaluation import PlanningProblem
from kvist.planner.plan_load import PlanLoad, draws_of_load, draws_of_trace
from kvist.planner.service_level_objective import parse_objective
from kvist.workload.load_file import shipped_loads
from kvist.workload.recorded_load import SHIPPED_TRACES, read_recorded_load, read_shipped_trace

NUM_DRAWS = 4
QUICK_REQUESTS, QUICK_DRAWS = 300, 2
DEVICES_PER_NODE = 8


def add_deployment_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is served on what")
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help="a name such as llama-3.1-70b, a config.json, a checkpoint folder or a .gguf file (default: %(default)s)",
    )
    group.add_argument(
        "--device", default=DEFAULT_DEVICE, metavar="DEVICE", help=f"one of {', '.join(DEVICES)} (%(default)s)"
    )
    group.add_argument(
        "--devices-per-node",
        type=whole_number("--devices-per-node", low=1),
        default=DEVICES_PER_NODE,
        metavar="N",
        help="devices of one host (default: %(default)s)",
    )
    group.add_argument(
        "--network-gb-per-s",
        type=number("--network-gb-per-s", low=1e-6),
        metavar="GB/S",
        help="of one host, one direction, in 1e9 bytes (default: what is usual for the device)",
    )
    group.add_argument(
        "--price",
        type=number("--price", low=0.0),
        metavar="USD",
        help="of one device for an hour (default: a typical on-demand price)",
    )
    group.add_argument(
        "--engine", default=CURRENT, metavar="NAME", help="engine whose measured efficiency is used (%(default)s)"
    )


def add_load_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    group = parser.add_argument_group("load and objective")
    names = ", ".join([*shipped_loads().loads, *SHIPPED_TRACES])
    group.add_argument("--workload", required=required, metavar="NAME|TRACE", help=f"a trace file, or one of {names}")
    group.add_argument(
        "--num-prompts", type=whole_number("--num-prompts", low=2), metavar="N", help="only so many of its requests"
    )
    group.add_argument(
        "--slo",
        required=required,
        metavar="TARGETS",
        help="such as ttft=500ms,tpot=50ms,attainment=0.9; times without a unit are in milliseconds",
    )


def chosen_problem(arguments: argparse.Namespace) -> PlanningProblem:
    """Raises ConfigError for what makes no sense."""
    model, device = read_model_spec(arguments.model), find_device(arguments.device)
    if device.kind != "gpu":
        raise ConfigError(f"{device.name}: plans are made for devices of the catalogue: {', '.join(DEVICES)}")
    if arguments.price is not None:
        device = replace(device, price_per_hour=arguments.price)
    network = arguments.network_gb_per_s or device.network_bytes_per_s * arguments.devices_per_node / GIGA
    load = chosen_load(arguments)
    return PlanningProblem(
        deployment=Deployment(
            model=arguments.model,
            device=device,
            devices_per_node=arguments.devices_per_node,
            network_gb_per_s=network,
            price_per_device_hour=device.price_per_hour,
            objective=parse_objective(arguments.slo),
        ),
        model=model,
        load=load,
        facts=load_facts(load),
        generation=engine_generation(arguments.engine),
    )


def chosen_load(arguments: argparse.Namespace) -> PlanLoad:
    """Raises ConfigError if there is no such load."""
    name, loads = arguments.workload, shipped_loads().loads
    num_draws = QUICK_DRAWS if arguments.quick else NUM_DRAWS
    count = arguments.num_prompts
    if arguments.quick:
        count = min(count or QUICK_REQUESTS, QUICK_REQUESTS)
    if name in loads:
        return draws_of_load(loads[name], num_draws=num_draws, num_requests=count)
    if name in SHIPPED_TRACES:
        return draws_of_trace(name, read_shipped_trace(name), num_draws=num_draws, num_requests=count)
    if Path(name).exists():
        return draws_of_trace(name, read_recorded_load(Path(name)), num_draws=num_draws, num_requests=count)
    known = [*loads, *SHIPPED_TRACES]
    raise ConfigError(
        f"--workload {name}: there is no such trace file and no such load.{did_you_mean(name, known)} "
        f"Loads are {', '.join(known)}"
    )
