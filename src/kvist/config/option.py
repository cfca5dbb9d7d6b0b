"""How a configuration field describes itself: help, unit, range and the spellings that users already know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

METADATA_KEY = "kvist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Metadata of one field. `aliases` are further command line spellings, with their dashes.

    off_aliases: spellings that switch a boolean off.
    """

    help: str
    aliases: Sequence[str] = ()
    off_aliases: Sequence[str] = ()
    choices: Sequence[str] = ()
    low: float | None = None
    high: float | None = None
    unit: str | None = None


def option(default: Any = MISSING, **metadata: Any) -> Any:  # Any: dataclasses.field is typed the same way
    """A dataclass field with an `Option`. The flag is --name-with-dashes."""
    return field(default=default, metadata={METADATA_KEY: Option(**metadata)})
