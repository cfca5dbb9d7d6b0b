"""Reads a load's table strictly: every key is asked for, none is left over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.workload.arrival_process import AllAtOnce, ArrivalProcess, Drift, Gamma, OnOff
from kvist.workload.length_distribution import LengthDistribution, parse_length

MAX_COUNT, MAX_SEED = 10_000_000, 2**63 - 1
MAX_NUMBER, LEAST_RATE = 1e9, 1e-9


class LoadTable:
    """One table of a load file. Any: values are as TOML gives them until they are asked for by type."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._values = dict(values)
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def count(self, key: str, default: int | None = None, *, most: int = MAX_COUNT) -> int:
        value = self._take(key, default)
        if type(value) is not int or not 1 <= value <= most:
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a whole number from 1 to {most}")
        return value

    def seed(self, key: str) -> int:
        """A whole number of 0 or more, 0 where none is given."""
        value = self._take(key, 0)
        if type(value) is not int or not 0 <= value <= MAX_SEED:
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a whole number from 0 to {MAX_SEED}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_NUMBER:
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a number from 0 to {MAX_NUMBER:g}")
        return float(value)

    def rate(self, key: str) -> float:
        value = self.number(key)
        if value < LEAST_RATE:
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a number from {LEAST_RATE:g} to {MAX_NUMBER:g}")
        return value

    def share(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value > 1.0:
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a share from 0 to 1")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a text")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}.{key}: {value!r} is neither true nor false")
        return value

    def length(self, key: str) -> LengthDistribution:
        return parse_length(self._take(key, None), f"{self.where}.{key}")

    def optional_length(self, key: str) -> LengthDistribution | None:
        return self.length(key) if key in self else None

    def table(self, key: str) -> LoadTable:
        return as_table(f"{self.where}.{key}", self._take(key, None))

    def tables(self, key: str) -> list[LoadTable]:
        value = self._take(key, None)
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a list of tables")
        return [as_table(f"{self.where}.{key}[{i}]", entry) for i, entry in enumerate(value)]

    def arrival(self) -> ArrivalProcess:
        """`"all_at_once"` or a table with a rate in fractions of capacity and one of poisson, gamma, on_off, drift."""
        if self._values.get("arrival") == "all_at_once":
            self._asked.add("arrival")
            return AllAtOnce()
        return _parse_arrival(self.table("arrival"))

    def check_num_requests(self, number: float) -> None:
        """Raise ConfigError if a load of so many requests is none that anybody could run."""
        if number > MAX_COUNT:
            raise ConfigError(f"{self.where}: these are {number:.3g} requests; a load has at most {MAX_COUNT}")

    def finish(self) -> None:
        """Raise ConfigError for a key that nobody asked for."""
        for key in self._values:
            if key not in self._asked:
                raise ConfigError(f"{self.where}: unknown key {key!r}{did_you_mean(key, self._asked)}")

    def _take(self, key: str, default: Any) -> Any:
        self._asked.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise ConfigError(f"{self.where}: {key!r} is missing")
        return value


def _parse_arrival(table: LoadTable) -> ArrivalProcess:
    process: ArrivalProcess
    if "drift" in table:
        drift = table.table("drift")
        process = Drift(drift.rate("from"), drift.rate("to"))
        drift.finish()
    elif "on_off" in table:
        on_off = table.table("on_off")
        process = OnOff(table.rate("rate"), on_off.rate("on_s"), on_off.number("off_s"))
        on_off.finish()
    elif "gamma" in table:
        gamma = table.table("gamma")
        process = Gamma(table.rate("rate"), gamma.rate("cv"))
        gamma.finish()
    else:
        if not table.flag("poisson", default=True):
            raise ConfigError(f"{table.where}: without poisson there must be one of gamma, on_off, drift")
        process = Gamma(table.rate("rate"))
    table.finish()
    return process


def as_table(where: str, value: Any) -> LoadTable:
    """Raises ConfigError if `value` is no table. Any: as TOML gives it."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {value!r} is not a table")
    return LoadTable(where, value)
