"""Reads configuration dataclasses as data: what each field may hold, and how it is written as text.

Knows nothing of where a value comes from: command line, file and keyword arguments all go through here.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from kvist.config.option import METADATA_KEY, Option
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean

C = TypeVar("C")
Value = Any  # bool, int, float, str, tuple[str, ...] or None: the field says which

MAX_WHOLE_NUMBER = 2**63 - 1  # what messages to the engine can carry

_BYTE_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _BYTE_UNITS |= {_letter: 1024**_power, f"{_letter}IB": 1024**_power, f"{_letter}B": 1000**_power}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigField:
    """One option. `kind` is bool, int, float or str; `is_repeated` fields hold a tuple of it."""

    section: str
    name: str
    kind: type[Any]
    is_optional: bool
    is_repeated: bool
    default: Value
    option: Option

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def parse(self, text: str, *, label: str | None = None) -> Value:
        """Read a value written as text. A repeated field takes a comma-separated list."""
        label = label or self.flag
        if self.is_repeated:
            return tuple(self._check_one(part.strip(), label) for part in text.split(",") if part.strip())
        return self._check_one(self._from_text(text, label), label)

    def check(self, value: Value, *, label: str | None = None) -> Value:
        """Return the value as the dataclass holds it. Raises ConfigError, naming `label`, if it may not hold it."""
        label = label or self.flag
        if value is None:
            if self.is_optional:
                return None
            raise ConfigError(f"{label} needs a value")
        if self.is_repeated:
            parts = (value,) if isinstance(value, str) else value
            if not isinstance(parts, (list, tuple)):
                raise ConfigError(f"{label} must be a list of strings, not {value!r}")
            return tuple(self._check_one(part, label) for part in parts)
        if isinstance(value, str) and self.option.unit == "bytes":
            value = self._from_text(value, label)
        return self._check_one(value, label)

    def to_text(self, value: Value) -> str:
        """Inverse of `parse` for one value; of a repeated field, for one element."""
        return str(value).lower() if self.kind is bool else str(value)

    def _from_text(self, text: str, label: str) -> Value:
        if self.kind is str:
            return text
        if self.kind is bool:
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            raise ConfigError(f"{label} must be true or false, not {text!r}")
        if self.option.unit == "bytes":
            return _parse_bytes(text, label)
        try:
            return self.kind(text)
        except ValueError:
            noun = "a whole number" if self.kind is int else "a number"
            raise ConfigError(f"{label} must be {noun}, not {text!r}") from None

    def _check_one(self, value: Value, label: str) -> Value:
        value = self._check_kind(value, label)
        low, high, choices = self.option.low, self.option.high, self.option.choices
        if choices and value not in choices:
            normal = str(value).replace("-", "_")
            if normal in choices:
                return normal
            raise ConfigError(
                f"{label} must be one of {', '.join(choices)}, not {value!r}.{did_you_mean(str(value), choices)}"
            )
        if self.kind is int and value > MAX_WHOLE_NUMBER:
            raise ConfigError(f"{label} must be at most {MAX_WHOLE_NUMBER}, not {value}")
        if low is not None and value < low:
            raise ConfigError(f"{label} must be at least {low:g}, not {value}")
        if high is not None and value > high:
            raise ConfigError(f"{label} must be at most {high:g}, not {value}")
        return value

    def _check_kind(self, value: Value, label: str) -> Value:
        if self.kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, self.kind) or (isinstance(value, bool) and self.kind is not bool):
            noun = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}[self.kind]
            raise ConfigError(f"{label} must be {noun}, not {value!r}")
        if self.kind is float and not math.isfinite(value):
            raise ConfigError(f"{label} must be a finite number, not {value}")
        if self.kind is str and "\0" in value:
            raise ConfigError(f"{label} must not hold a NUL character")
        return value


def config_fields(config_class: type, section: str) -> tuple[ConfigField, ...]:
    """The options of one configuration dataclass."""
    hints = get_type_hints(config_class)
    result = []
    for field in dataclasses.fields(config_class):
        hint, is_optional, is_repeated = hints[field.name], False, False
        if get_origin(hint) in (Union, types.UnionType):
            hint, is_optional = next(part for part in get_args(hint) if part is not type(None)), True
        if get_origin(hint) is tuple:
            hint, is_repeated = get_args(hint)[0], True
        result.append(
            ConfigField(
                section=section,
                name=field.name,
                kind=hint,
                is_optional=is_optional,
                is_repeated=is_repeated,
                default=field.default,
                option=field.metadata[METADATA_KEY],
            )
        )
    return tuple(result)


def build_config(config_class: type[C], section: str, values: Mapping[str, Value], *, source: str) -> C:
    """Make a configuration from already typed values; `source` opens the messages, say "[cache]".

    Raises ConfigError for unknown names, naming the nearest, and for values out of range.
    """
    fields = {field.name: field for field in config_fields(config_class, section)}
    checked = {}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(f"{source} has no option {name!r}.{did_you_mean(name, fields)}")
        checked[name] = fields[name].check(value, label=f"{source} {name}".strip())
    return config_class(**checked)


def _parse_bytes(text: str, label: str) -> int:
    number = text.strip().rstrip("BIKMGTbikmgt")
    unit = text.strip()[len(number) :].upper()
    try:
        size = float(number) if "." in number else int(number)
        return int(size * _BYTE_UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(f"{label} must be a size such as 512M, 2G or a number of bytes, not {text!r}") from None
