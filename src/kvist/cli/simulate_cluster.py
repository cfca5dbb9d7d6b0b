"""The cluster that `kvist simulate` runs: from a file, changed by flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvist.cli.cost_arguments import DEFAULT_DEVICE, DEFAULT_MODEL, chosen_calibration, read_model_spec
from kvist.cli.step_times import step_time_of_table
from kvist.config.arguments import number, whole_number
from kvist.config.cluster_config import ROUTERS, ClusterConfig, ReplicaGroupConfig
from kvist.config.load_cluster import ClusterFile, read_cluster_file
from kvist.config.scheduler_config import POLICIES
from kvist.core.errors import ConfigError
from kvist.costmodel.step_time_model import StepTimeModel
from kvist.simulator.placed_cluster import place_cluster

_ROLES = {"p": ("prefill", 1.0, 0.0), "d": ("decode", 0.0, 1.0), "m": ("mixed", 1.0, 1.0)}

MAX_REPLICAS = 4096


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster options")
    group.add_argument("--config", type=Path, metavar="FILE.toml", help="the cluster, as a file; see docs/simulator.md")
    group.add_argument(
        "--replicas", type=whole_number("--replicas", low=1), metavar="N", help="so many replicas, of one group"
    )
    group.add_argument(
        "--roles",
        metavar="ROLES",
        help="replicas by role, of one group: 8p8d is 8 for prefill and 8 for decode; m is mixed",
    )
    group.add_argument("--router", choices=ROUTERS, help="how a replica is chosen")
    group.add_argument("--policy", choices=POLICIES, help="how a step's token budget is filled, on every replica")
    for name, what in (("ttft", "time to first token"), ("tpot", "time per output token")):
        flag = f"--{name}-slo"
        group.add_argument(flag, type=number(flag, low=0.0), metavar="S", help=f"target of the {what}, in seconds")
    places = parser.add_argument_group("what every replica runs on (instead of what the file says)")
    places.add_argument("--model", metavar="MODEL", help="a name such as llama-3.1-70b, or a checkpoint")
    places.add_argument("--device", metavar="DEVICE", help="a name such as H100-80GB-SXM")
    places.add_argument("--dtype", metavar="FORMAT", help="number format of the weights")
    places.add_argument("--engine", metavar="NAME", help="engine and version whose measured efficiency is used")
    places.add_argument("--calibration", type=Path, metavar="FILE", help="from kvist calibrate (default: kvist's own)")
    for flags, what in (
        (("--tp", "--tensor-parallel-size"), "devices that share each layer"),
        (("--pp", "--pipeline-parallel-size"), "stages that share the layers"),
    ):
        places.add_argument(*flags, type=whole_number(flags[0], low=1), metavar="N", help=what)


def cluster_and_step_times(arguments: argparse.Namespace) -> tuple[ClusterConfig, Mapping[str, StepTimeModel]]:
    """The cluster, and the step-time model of each of its groups. Raises ConfigError."""
    file = (
        ClusterFile(ClusterConfig(groups=(ReplicaGroupConfig(),)), {})
        if arguments.config is None
        else read_cluster_file(arguments.config)
    )
    config = file.config
    where = str(arguments.config)
    models: dict[str, StepTimeModel] = {}
    for group in config.groups:
        own = group.name if group.name in file.step_times else ""
        if own in file.step_times and arguments.device is None:
            models[group.name] = step_time_of_table(file.step_times[own], where=f"{where}: step_time")
    if arguments.replicas is not None or arguments.roles is not None:
        origin = _only_group(config)
        groups = (
            (replace(origin, count=arguments.replicas),)
            if arguments.roles is None
            else _role_groups(origin, arguments.roles, arguments.replicas)
        )
        config = replace(config, groups=groups)
        models = {group.name: models[origin.name] for group in groups if origin.name in models}
    config = replace(config, groups=tuple(_changed(group, arguments) for group in config.groups))
    router = config.router
    router = replace(
        router,
        policy=arguments.router or router.policy,
        ttft_slo_s=router.ttft_slo_s if arguments.ttft_slo is None else arguments.ttft_slo,
        tpot_slo_s=router.tpot_slo_s if arguments.tpot_slo is None else arguments.tpot_slo,
    )
    calibration = chosen_calibration(arguments)
    return place_cluster(replace(config, router=router), models, find_model=read_model_spec, calibration=calibration)


def _changed(group: ReplicaGroupConfig, arguments: argparse.Namespace) -> ReplicaGroupConfig:
    """The group with what the flags say of all groups."""
    flags = {
        "policy": arguments.policy,
        "model": arguments.model,
        "device": arguments.device,
        "dtype": arguments.dtype,
        "engine": arguments.engine,
        "tensor_parallel_size": arguments.tp,
        "pipeline_parallel_size": arguments.pp,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    if "device" in given or "model" in given:
        given.setdefault("model", group.model or DEFAULT_MODEL)
        given.setdefault("device", group.device or DEFAULT_DEVICE)
    elif group.model is None and group.device is None and arguments.config is None:
        given |= {"model": DEFAULT_MODEL, "device": DEFAULT_DEVICE}
    return replace(group, **given)


def _only_group(config: ClusterConfig) -> ReplicaGroupConfig:
    if len(config.groups) > 1:
        raise ConfigError(f"--replicas and --roles need a file with one group of replicas, not {len(config.groups)}")
    return config.groups[0]


def _role_groups(origin: ReplicaGroupConfig, roles: str, num_replicas: int | None) -> tuple[ReplicaGroupConfig, ...]:
    parts = re.findall(r"(\d+)([pdm])", roles)
    if not parts or "".join(count + role for count, role in parts) != roles:
        raise ConfigError(f"--roles {roles!r}: write counts and roles, as in 8p8d or 2p4d1m")
    if num_replicas is not None and sum(int(count) for count, _ in parts) != num_replicas:
        raise ConfigError(f"--roles {roles} names another number of replicas than --replicas {num_replicas}")
    if sum(int(count) for count, _ in parts) > MAX_REPLICAS:
        raise ConfigError(f"--roles {roles!r}: there may be at most {MAX_REPLICAS} replicas")
    if len({role for _, role in parts}) < len(parts) or any(int(count) == 0 for count, _ in parts):
        raise ConfigError(f"--roles {roles!r}: name each role once, with at least one replica")
    groups = []
    for count, role in parts:
        name, prefill_weight, decode_weight = _ROLES[role]
        groups.append(
            replace(origin, name=name, count=int(count), prefill_weight=prefill_weight, decode_weight=decode_weight)
        )
    return tuple(groups)
