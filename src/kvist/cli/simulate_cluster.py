"""The cluster that `kvist simulate` runs: from a file, changed by flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvist.cli.step_times import step_time_of_table
from kvist.config.arguments import number, whole_number
from kvist.config.cluster_config import ROUTERS, ClusterConfig, ReplicaGroupConfig
from kvist.config.load_cluster import ClusterFile, read_cluster_file
from kvist.config.scheduler_config import POLICIES
from kvist.core.errors import ConfigError
from kvist.costmodel.step_time_model import StepTimeModel

_ROLES = {"p": ("prefill", 1.0, 0.0), "d": ("decode", 0.0, 1.0), "m": ("mixed", 1.0, 1.0)}


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster options")
    group.add_argument("--config", type=Path, required=True, metavar="FILE.toml", help="the cluster, as a file")
    group.add_argument(
        "--replicas", type=whole_number("--replicas", low=1), metavar="N", help="so many replicas, of one group"
    )
    group.add_argument(
        "--roles",
        metavar="ROLES",
        help="replicas by role, of one group: 8p8d is 8 for prefill and 8 for decode, m mixed",
    )
    group.add_argument("--router", choices=ROUTERS, help="how a replica is chosen")
    group.add_argument("--policy", choices=POLICIES, help="how a step's token budget is filled, on every replica")
    for name, what in (("ttft", "time to first token"), ("tpot", "time per output token")):
        group.add_argument(
            f"--{name}-slo",
            type=number(f"--{name}-slo", low=0.0),
            metavar="S",
            help=f"target of the {what}, in seconds",
        )


def cluster_and_step_times(arguments: argparse.Namespace) -> tuple[ClusterConfig, Mapping[str, StepTimeModel]]:
    """The cluster, and the step-time model of each of its groups. Raises ConfigError."""
    file = read_cluster_file(arguments.config)
    config = file.config
    models = {group.name: _step_time(file, group, str(arguments.config)) for group in config.groups}
    if arguments.replicas is not None or arguments.roles is not None:
        origin = _only_group(config)
        groups = (
            (replace(origin, count=arguments.replicas),)
            if arguments.roles is None
            else _role_groups(origin, arguments.roles, arguments.replicas)
        )
        config = replace(config, groups=groups)
        models = {group.name: models[origin.name] for group in groups}
    if arguments.policy is not None:
        config = replace(config, groups=tuple(replace(group, policy=arguments.policy) for group in config.groups))
    router = config.router
    router = replace(
        router,
        policy=arguments.router or router.policy,
        ttft_slo_s=router.ttft_slo_s if arguments.ttft_slo is None else arguments.ttft_slo,
        tpot_slo_s=router.tpot_slo_s if arguments.tpot_slo is None else arguments.tpot_slo,
    )
    return replace(config, router=router), models


def _step_time(file: ClusterFile, group: ReplicaGroupConfig, where: str) -> StepTimeModel:
    own = group.name if group.name in file.step_times else ""
    if own not in file.step_times:
        raise ConfigError(f"{where}: nothing says how long a step of {group.name!r} takes. Add a table [step_time].")
    return step_time_of_table(file.step_times[own], group, where=f"{where}: step_time")


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
    if len({role for _, role in parts}) < len(parts) or any(int(count) == 0 for count, _ in parts):
        raise ConfigError(f"--roles {roles!r}: name each role once, with at least one replica")
    groups = []
    for count, role in parts:
        name, prefill_weight, decode_weight = _ROLES[role]
        groups.append(
            replace(origin, name=name, count=int(count), prefill_weight=prefill_weight, decode_weight=decode_weight)
        )
    return tuple(groups)
