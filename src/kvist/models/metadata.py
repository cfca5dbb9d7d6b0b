"""Typed reading of a checkpoint's metadata: every value is checked, every error names the key and what it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvist.core.errors import CheckpointError

MAX_DIMENSION = 1 << 24  # no width, count or context of a real model comes near it


class Metadata:
    """Key-values of a checkpoint as they were read: GGUF metadata, or (a part of) config.json.

    An absent key and a JSON null are the same. `prefix` stands before every key asked for.
    """

    def __init__(self, values: Mapping[str, Any], *, prefix: str = "") -> None:  # Any: whatever the file holds
        self._values = values
        self._prefix = prefix

    def over(self, defaults: Mapping[str, Any]) -> Metadata:
        """The same with `defaults` for keys that are absent."""
        present = {key: value for key, value in self._values.items() if value is not None}
        return Metadata({**defaults, **present}, prefix=self._prefix)

    def has(self, key: str) -> bool:
        return self._values.get(self._prefix + key) is not None

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_DIMENSION) -> int:
        """Return the whole number at `key`. Raises CheckpointError if absent without default, or out of range."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(key, f"a whole number from {low} to {high}", value)
        return value

    def number(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e12) -> float:
        """Return the finite number at `key`. Raises CheckpointError as `integer` does."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        if not (math.isfinite(value) and low <= value <= high):
            raise self._wrong(key, f"a number from {low} to {high}", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001 - a default, as in the other readers
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def texts(self, key: str) -> list[str]:
        value = self._get(key, None)
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise self._wrong(key, "a list of texts", value)
        return list(value)

    def is_list(self, key: str) -> bool:
        value = self._values.get(self._prefix + key)
        return isinstance(value, Sequence) and not isinstance(value, str)

    def flags(self, key: str, count: int) -> list[bool]:
        """The list of `count` truth values at `key`."""
        value = self._get(key, None)
        if not self.is_list(key) or len(value) != count or not all(isinstance(v, bool) for v in value):
            raise self._wrong(key, f"a list of {count} times true or false", value)
        return list(value)

    def part(self, key: str) -> Metadata | None:
        """The object at `key`, or None if there is none."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object", value)
        return Metadata(value)

    def _get(self, key: str, default: Any) -> Any:  # Any: whatever the file holds
        value = self._values.get(self._prefix + key)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"the checkpoint's metadata lacks {self._prefix + key!r}; is the file complete?")
        return value

    def _wrong(self, key: str, wanted: str, value: object) -> CheckpointError:
        return CheckpointError(f"the checkpoint's {self._prefix + key!r} must be {wanted}, not {str(value)[:80]!r}")
