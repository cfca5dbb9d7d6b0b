"""All that one reproduction found, as data that is written, read back, printed and plotted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from kvist.core.errors import ConfigError
from kvist.repro.row import ReproRow


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlot:
    """Groups of bars: `values[series][i]` stands over `groups[i]`."""

    title: str
    unit: str
    groups: Sequence[str]
    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproResult:
    """The rows of one paper. setup: what all rows have in common. size: "full", "quick" or the share of the load.
    executor: what computed, as it describes itself.

    notes: what a reader must know besides, a paragraph each.
    """

    name: str
    title: str
    setup: str
    executor: str
    size: str
    repeats: int
    rows: Sequence[ReproRow]
    plots: Sequence[BarPlot] = field(default=())
    notes: Sequence[str] = field(default=())


def to_document(result: ReproResult) -> dict[str, Any]:
    """As JSON holds it; each row with its ratio. Any: JSON."""
    document = asdict(result)
    document["rows"] = [asdict(row) | {"ratio": row.ratio} for row in result.rows]
    return document


def from_document(document: Mapping[str, Any]) -> ReproResult:
    """Inverse of `to_document`; keys that are not its own are passed over. Raises ConfigError if some are missing."""
    try:
        return msgspec.convert(document, ReproResult)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this is no result of this version's kvist repro: {error}") from error
