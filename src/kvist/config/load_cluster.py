"""Reads a cluster from a TOML file: [[replicas]], [cache], [links], [router], [[failures]], and [step_time] tables."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvist.config.cluster_config import (
    ClusterCacheConfig,
    ClusterConfig,
    FailureConfig,
    LinksConfig,
    ReplicaGroupConfig,
    RouterConfig,
)
from kvist.config.fields import Value, build_config
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean

STEP_TIME = "step_time"
SECTIONS = ("replicas", "cache", "links", "router", "failures", STEP_TIME)


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """step_times: coefficients by group name, or under "" for all groups; as they stand in the file."""

    config: ClusterConfig
    step_times: Mapping[str, Mapping[str, Value]]


def read_cluster_file(path: Path) -> ClusterFile:
    """Raises ConfigError if the file cannot be read or holds what is not known."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the cluster file {path}: {error}") from error
    return parse_cluster(text, str(path))


def parse_cluster(text: str, where: str) -> ClusterFile:
    try:
        tables: dict[str, Any] = tomllib.loads(text)  # Any: as TOML gives it
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    for section in tables:
        if section not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise ConfigError(
                f"{where}: unknown section {section!r}.{did_you_mean(section, SECTIONS)} There is {known}."
            )
    step_times: dict[str, Mapping[str, Value]] = {}
    if STEP_TIME in tables:
        step_times[""] = _table(tables, STEP_TIME, where)
    groups = []
    for number, values in enumerate(_tables(tables, "replicas", where)):
        own = values.pop(STEP_TIME, None)
        values.setdefault("name", f"group{number}")
        group = build_config(ReplicaGroupConfig, "replicas", values, source=f"{where}: replicas {number}")
        groups.append(group)
        if own is not None:
            step_times[group.name] = own
    if not groups:
        raise ConfigError(f"{where}: a cluster needs at least one table [[replicas]]")
    names = [group.name for group in groups]
    if len(set(names)) < len(names):
        raise ConfigError(f"{where}: two groups of replicas have one name: {', '.join(names)}")
    cache = build_config(ClusterCacheConfig, "cache", _table(tables, "cache", where), source=f"{where}: [cache]")
    if cache.block_size % 16:
        raise ConfigError(f"{where}: block_size must be a multiple of 16, not {cache.block_size}")
    config = ClusterConfig(
        groups=tuple(groups),
        cache=cache,
        links=build_config(LinksConfig, "links", _table(tables, "links", where), source=f"{where}: [links]"),
        router=build_config(RouterConfig, "router", _table(tables, "router", where), source=f"{where}: [router]"),
        failures=tuple(
            build_config(FailureConfig, "failures", values, source=f"{where}: [[failures]]")
            for values in _tables(tables, "failures", where)
        ),
    )
    return ClusterFile(config, step_times)


def _table(tables: Mapping[str, Any], name: str, where: str) -> dict[str, Value]:
    values = tables.get(name, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: {name} must be a table: write [{name}] and its options below")
    return dict(values)


def _tables(tables: Mapping[str, Any], name: str, where: str) -> list[dict[str, Value]]:
    values = tables.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ConfigError(f"{where}: {name} must be tables: write [[{name}]] and the options of each below")
    return [dict(value) for value in values]
