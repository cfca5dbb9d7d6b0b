"""Loads by name: those that ship with kvist (frozen: results count on them) and those of a user's own file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.workload.load_table import LoadTable, as_table
from kvist.workload.sessions import Sessions, TreeOfThought, parse_agent, parse_conversations, parse_tree_of_thought
from kvist.workload.single_turn import Changing, SingleTurn, parse_changing, parse_single_turn
from kvist.workload.trace_record import TraceRecord

SECTIONS = ("defaults", "loads", "slo")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    """Of all loads of a file."""

    seed: int
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load as stated.

    drawn_as: names its texts and draws; a load that is like another one has that one's requests.
    kv_cache_tokens_fraction: KV pool, as a share of the tokens that all sessions hold at their end.
    """

    name: str
    about: str
    seed: int
    temperature: float
    shape: SingleTurn | Changing | Sessions | TreeOfThought
    drawn_as: str
    kv_cache_tokens_fraction: float | None = None

    def records(self, *, capacity_per_s: float, seed: int | None = None, scale: float = 1.0) -> list[TraceRecord]:
        """The load's requests, byte-equal from run to run; a parent comes before those that follow it.

        capacity_per_s: requests per second that the system under test completes when all come at once.
        seed: other texts and other draws of the same load; None for the load's own.
        scale: multiplies all rates.
        """
        used = self.seed if seed is None else seed
        return self.shape.records(used, f"{self.drawn_as}/{used}", capacity_per_s * scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """Targets for goodput, as multiples of a request's unloaded latency on the same machine."""

    ttft_multiple: float
    tpot_multiple: float
    attainment: float


@dataclass(frozen=True, slots=True)
class LoadFile:
    """A parsed file of loads."""

    loads: Mapping[str, Load]
    service_level: ServiceLevel | None

    def load(self, name: str) -> Load:
        """Raises ConfigError for a name that is not there."""
        if name not in self.loads:
            raise ConfigError(
                f"there is no load {name!r}{did_you_mean(name, self.loads)} There is {', '.join(self.loads)}."
            )
        return self.loads[name]


@cache
def frozen_loads() -> LoadFile:
    """The loads that ship with kvist."""
    return parse_load_file(files("kvist.workload").joinpath("workloads.toml").read_text(encoding="utf-8"), "workloads")


@cache
def scenario_loads() -> LoadFile:
    """The loads of services that ship with kvist, for plans."""
    return parse_load_file(files("kvist.workload").joinpath("scenarios.toml").read_text(encoding="utf-8"), "scenarios")


def shipped_loads() -> LoadFile:
    """All loads that ship with kvist, the frozen ones first."""
    frozen = frozen_loads()
    return LoadFile({**frozen.loads, **scenario_loads().loads}, frozen.service_level)


def read_load_file(path: Path) -> LoadFile:
    """Raises ConfigError if the file cannot be read or states a load that makes no sense."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the load file {path}: {error}") from error
    return parse_load_file(text, str(path))


def parse_load_file(text: str, where: str) -> LoadFile:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    for section in document:
        if section not in SECTIONS:
            meant = did_you_mean(section, SECTIONS)
            raise ConfigError(f"{where}: unknown section {section!r}.{meant} There is {', '.join(SECTIONS)}.")
    defaults, tables = _parse_defaults(document, where), document.get("loads", {})
    if not isinstance(tables, dict) or not all(isinstance(values, dict) for values in tables.values()):
        raise ConfigError(f"{where}: loads are tables: write [loads.NAME] and what the load is like below")
    loads = {name: _parse_load(name, tables, defaults, where) for name in tables}
    return LoadFile(loads, _parse_service_level(document, where))


def _parse_defaults(document: Mapping[str, Any], where: str) -> _Defaults:
    """Any: tables as TOML gives them."""
    table = as_table(f"{where}: defaults", document.get("defaults", {}))
    defaults = _Defaults(seed=table.seed("seed"), temperature=table.number("temperature", 0.0))
    table.text("model", "")  # what it is meant for; nothing follows from it
    table.flag("ignore_eos", default=True)  # lengths are always those that are stated
    table.finish()
    return defaults


def _parse_load(name: str, tables: Mapping[str, Mapping[str, Any]], defaults: _Defaults, where: str) -> Load:
    """Any: tables as TOML gives them."""
    drawn_as, values = name, tables[name]
    if "like" in values:
        drawn_as = str(values["like"])
        if drawn_as not in tables or "like" in tables[drawn_as]:
            raise ConfigError(f"{where}: load {name!r} is like {drawn_as!r}, which is no load of its own here")
        values = {**tables[drawn_as], **{key: value for key, value in values.items() if key != "like"}}
    table = LoadTable(f"{where}: loads.{name}", values)
    about = table.text("about", name.replace("_", " "))
    temperature = table.number("temperature", defaults.temperature)
    fraction = table.rate("kv_cache_tokens_fraction") if "kv_cache_tokens_fraction" in table else None
    shape = _parse_shape(table, values)
    table.finish()
    return Load(
        name=name,
        about=about,
        seed=defaults.seed,
        temperature=temperature,
        shape=shape,
        drawn_as=drawn_as,
        kv_cache_tokens_fraction=fraction,
    )


def _parse_shape(table: LoadTable, values: Mapping[str, Any]) -> SingleTurn | Changing | Sessions | TreeOfThought:
    """Each shape is known by the key that only it has."""
    if "turns" in values:
        return parse_conversations(table)
    if "steps" in values:
        return parse_agent(table)
    if "roots" in values:
        return parse_tree_of_thought(table)
    if isinstance(values.get("arrival"), dict) and "segments" in values["arrival"]:
        return parse_changing(table)
    return parse_single_turn(table)


def _parse_service_level(document: Mapping[str, Any], where: str) -> ServiceLevel | None:
    if "slo" not in document:
        return None
    table = as_table(f"{where}: slo", document["slo"])
    level = ServiceLevel(
        ttft_multiple=table.rate("ttft_multiple"),
        tpot_multiple=table.rate("tpot_multiple"),
        attainment=table.share("attainment"),
    )
    table.finish()
    return level
