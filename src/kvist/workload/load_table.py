"""Reads a load's table strictly: every key is asked for, none is left over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.workload.arrival_process import AllAtOnce, ArrivalProcess, Drift, Gamma, OnOff
from kvist.workload.length_distribution import LengthDistribution, parse_length


class LoadTable:
    """One table of a load file. Any: values are as TOML gives them until they are asked for by type."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._values = dict(values)
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def count(self, key: str, default: int | None = None) -> int:
        value = self._take(key, default)
        if type(value) is not int or value < 1:
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a number of 0 or more")
        return float(value)

    def rate(self, key: str) -> float:
        value = self.number(key)
        if value == 0.0:
            raise ConfigError(f"{self.where}.{key}: a rate is above 0")
        return value

    def text(self, key: str, default: str) -> str:
        return str(self._take(key, default))

    def length(self, key: str) -> LengthDistribution:
        return parse_length(self._take(key, None), f"{self.where}.{key}")

    def optional_length(self, key: str) -> LengthDistribution | None:
        return self.length(key) if key in self else None

    def table(self, key: str) -> LoadTable:
        return _as_table(f"{self.where}.{key}", self._take(key, None))

    def tables(self, key: str) -> list[LoadTable]:
        value = self._take(key, None)
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{self.where}.{key}: {value!r} is not a list of tables")
        return [_as_table(f"{self.where}.{key}[{i}]", entry) for i, entry in enumerate(value)]

    def arrival(self) -> ArrivalProcess:
        """`"all_at_once"` or a table with a rate in fractions of capacity and one of poisson, gamma, on_off, drift."""
        if self._values.get("arrival") == "all_at_once":
            self._asked.add("arrival")
            return AllAtOnce()
        return _parse_arrival(self.table("arrival"))

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
        table.text("poisson", "true")
        process = Gamma(table.rate("rate"))
    table.finish()
    return process


def _as_table(where: str, value: Any) -> LoadTable:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {value!r} is not a table")
    return LoadTable(where, value)
