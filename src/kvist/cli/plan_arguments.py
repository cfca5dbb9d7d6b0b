"""What `kvist plan` and `kvist advise` are asked: a model, devices, a load and an objective."""

from __future__ import annotations

import argparse
from dataclasses import replace

from kvist.bench.load_fit import check_lengths
from kvist.cli.cost_arguments import DEFAULT_DEVICE, DEFAULT_MODEL, read_model_spec
from kvist.cli.host_profiles import add_host_arguments, read_hosts, refuse_a_cpu_as_device
from kvist.cli.named_workload import find_workload, workload_names
from kvist.cli.simulate_load import add_scale_lengths
from kvist.config.arguments import number, whole_number
from kvist.core.errors import ConfigError
from kvist.costmodel.device_catalogue import DEVICES, find_device
from kvist.costmodel.engine_generation import CURRENT, find_generation
from kvist.planner.bounds import load_facts
from kvist.planner.candidate import GIGA, Deployment
from kvist.planner.evaluation import PlanningProblem
from kvist.planner.plan_load import PlanLoad, draws_of_load, draws_of_trace
from kvist.planner.service_level_objective import parse_objective
from kvist.workload.adapting import scale_lengths
from kvist.workload.load_file import Load

NUM_DRAWS = 4
QUICK_REQUESTS, QUICK_DRAWS = 300, 2
DEVICES_PER_NODE = 8
HOST_NETWORK_GB_PER_S = 1.25  # 10 Gb/s


def add_deployment_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is served on what")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="a name such as llama-3.1-70b, a config.json, a checkpoint folder or a .gguf file "
        f"(default: {DEFAULT_MODEL}, or that of the profile)",
    )
    group.add_argument("--device", metavar="DEVICE", help=f"one of {', '.join(DEVICES)} ({DEFAULT_DEVICE})")
    add_host_arguments(group)
    group.add_argument(
        "--devices-per-node",
        type=whole_number("--devices-per-node", low=1),
        metavar="N",
        help=f"devices of one host (default: {DEVICES_PER_NODE})",
    )
    group.add_argument(
        "--network-gb-per-s",
        type=number("--network-gb-per-s", low=1e-6),
        metavar="GB/S",
        help="of one host, one direction, in 1e9 bytes (default: what is usual for the device; measured hosts: "
        f"{HOST_NETWORK_GB_PER_S:g})",
    )
    group.add_argument(
        "--price",
        type=number("--price", low=0.0),
        metavar="USD",
        help="of one device for an hour (default: a typical on-demand price; of a measured host none)",
    )
    group.add_argument("--engine", metavar="NAME", help=f"engine whose measured efficiency is used ({CURRENT})")


def add_load_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    group = parser.add_argument_group("load and objective")
    names = ", ".join(workload_names())
    group.add_argument("--workload", required=required, metavar="NAME|TRACE", help=f"a trace file, or one of {names}")
    group.add_argument(
        "--num-prompts", type=whole_number("--num-prompts", low=2), metavar="N", help="only so many of its requests"
    )
    add_scale_lengths(group)
    group.add_argument(
        "--slo",
        required=required,
        metavar="TARGETS",
        help="such as ttft=500ms,tpot=50ms,attainment=0.9; times without a unit are in milliseconds",
    )


def chosen_problem(arguments: argparse.Namespace) -> PlanningProblem:
    """Raises ConfigError for what makes no sense."""
    if arguments.profile:
        return _problem_on_hosts(arguments)
    if arguments.memory_gb is not None:
        raise ConfigError("--memory-gb is of measured hosts: it needs --profile")
    device_name = arguments.device or DEFAULT_DEVICE
    refuse_a_cpu_as_device(device_name)
    model_name = arguments.model or DEFAULT_MODEL
    model, device = read_model_spec(model_name), find_device(device_name)
    if arguments.price is not None:
        device = replace(device, price_per_hour=arguments.price)
    devices_per_node = arguments.devices_per_node or DEVICES_PER_NODE
    load = chosen_load(arguments)
    return PlanningProblem(
        deployment=Deployment(
            model=model_name,
            device=device,
            devices_per_node=devices_per_node,
            network_gb_per_s=arguments.network_gb_per_s or device.network_bytes_per_s * devices_per_node / GIGA,
            price_per_device_hour=device.price_per_hour,
            objective=parse_objective(arguments.slo),
        ),
        model=model,
        load=load,
        facts=load_facts(load),
        generation=find_generation(arguments.engine or CURRENT),
    )


def _problem_on_hosts(arguments: argparse.Namespace) -> PlanningProblem:
    for name in ("device", "devices_per_node", "engine"):
        if getattr(arguments, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} is of the catalogue's devices, --profile of a host: give one"
            )
    hosts = read_hosts(arguments.profile, model=arguments.model, memory_gb=arguments.memory_gb)
    first = next(iter(hosts.values()))
    load = chosen_load(arguments)
    for host in hosts.values():
        check_lengths(load.draws[0], host.engine.model_spec.max_position)
    network = arguments.network_gb_per_s or HOST_NETWORK_GB_PER_S
    price = arguments.price or 0.0
    return PlanningProblem(
        deployment=Deployment(
            model=" or ".join(dict.fromkeys(host.table.model for host in hosts.values())),
            device=first.device(network_gb_per_s=network, price_per_hour=price),
            devices_per_node=1,
            network_gb_per_s=network,
            price_per_device_hour=price,
            objective=parse_objective(arguments.slo),
        ),
        model=first.engine.model_spec,
        load=load,
        facts=load_facts(load),
        hosts=hosts,
    )


def chosen_load(arguments: argparse.Namespace) -> PlanLoad:
    """Raises ConfigError if there is no such load."""
    load = _load_of_name(arguments)
    factor: float = arguments.scale_lengths
    draws = tuple(scale_lengths(draw, factor) for draw in load.draws)
    return replace(load, draws=draws, length_factor=factor)


def _load_of_name(arguments: argparse.Namespace) -> PlanLoad:
    num_draws = QUICK_DRAWS if arguments.quick else NUM_DRAWS
    count = arguments.num_prompts
    if arguments.quick:
        count = min(count or QUICK_REQUESTS, QUICK_REQUESTS)
    found = find_workload(arguments.workload)
    if isinstance(found, Load):
        return draws_of_load(found, num_draws=num_draws, num_requests=count)
    return draws_of_trace(arguments.workload, found, num_draws=num_draws, num_requests=count)
