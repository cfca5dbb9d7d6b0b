"""Reads files of measured points: one row is one number. The columns: docs/costmodel.md."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kvist.core.errors import ConfigError
from kvist.costmodel.engine_generation import engine_generation

COLUMNS = (
    "kind", "model", "gpu", "tp", "dtype", "batch", "input_len", "context_len", "output_len", "metric", "framework"
)  # fmt: skip
SHIPPED = "gpu_points.csv"
MOST = {"tp": 1024, "batch": 65_536}  # what nobody measures is a slip of the pen
MOST_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row. Absent numbers are None; value is None where a row only asks."""

    kind: str
    model: str
    device: str
    dtype: str
    metric: str
    quality: str
    framework: str
    note: str
    tensor_parallel_size: int
    batch: int
    input_len: int
    context_len: int
    output_len: int
    chunk_len: int | None
    rate_per_s: float | None
    prefix_len: int | None
    num_prefixes: int | None
    num_users: int | None
    max_num_batched_tokens: int | None
    value: float | None
    row_hash: int

    @property
    def generation(self) -> str:
        return engine_generation(self.framework)

    @property
    def may_be_fitted(self) -> bool:
        return bool(self.value) and self.quality not in ("measured-outlier", "composed-from-measured-ops")


@dataclass(frozen=True, slots=True)
class BadPoint:
    """A row that cannot be read, and why."""

    reason: str


def read_points(path: Path | None = None) -> list[Point | BadPoint]:
    """All rows of a file in order; None: those that kvist brings. Raises ConfigError if it is no such file at all."""
    if path is None:
        text = files("kvist.bench.calibration").joinpath(SHIPPED).read_text(encoding="utf-8")
    else:
        try:
            text = path.read_text(encoding="utf-8-sig", errors="replace")  # a note may be in any encoding
        except OSError as error:
            raise ConfigError(f"cannot read points from {path}: {error.strerror}") from error
    return parse_points(io.StringIO(text), str(path or SHIPPED))


def parse_points(lines: Iterable[str], name: str) -> list[Point | BadPoint]:
    """As `read_points`. Where a column is absent, every row says so."""
    try:
        reader = csv.DictReader(lines)
        reader.fieldnames = header = [column.strip() for column in reader.fieldnames or ()]
        absent = [column for column in COLUMNS if column not in header]
        if len(absent) == len(COLUMNS):
            raise ConfigError(f"{name} is no file of points: its first line names none of {', '.join(COLUMNS)}")
        if absent:
            return [BadPoint(f"the file lacks the columns {', '.join(absent)}") for _ in reader]
        return [_point(row) for row in reader]
    except csv.Error as error:
        raise ConfigError(f"{name} is not a CSV file: {error}") from error


def _point(row: dict[str, str | None]) -> Point | BadPoint:
    fields = {key: (value or "").strip() for key, value in row.items() if isinstance(key, str)}
    try:
        return Point(
            kind=fields["kind"],
            model=fields["model"],
            device=fields["gpu"],
            dtype=fields["dtype"],
            metric=fields["metric"],
            quality=fields.get("quality", ""),
            framework=fields["framework"],
            note=fields.get("note", ""),
            tensor_parallel_size=_integer(fields, "tp") or 1,
            batch=_integer(fields, "batch") or 0,
            input_len=_integer(fields, "input_len") or 0,
            context_len=_integer(fields, "context_len") or 0,
            output_len=_integer(fields, "output_len") or 0,
            chunk_len=_integer(fields, "chunk_len"),
            rate_per_s=_number(fields, "rate_rps"),
            prefix_len=_integer(fields, "prefix_len"),
            num_prefixes=_integer(fields, "num_prefixes"),
            num_users=_integer(fields, "num_users"),
            max_num_batched_tokens=_integer(fields, "max_num_batched_tokens"),
            value=_number(fields, "value"),
            row_hash=_hash(fields),
        )
    except ValueError as error:
        return BadPoint(f"the row cannot be read: {error}")


def _number(fields: dict[str, str], key: str) -> float | None:
    text = fields.get(key, "")
    if not text:
        return None
    value = float(text)
    if not 0.0 <= value < 1e12:
        raise ValueError(f"{key} is {text}")
    return value


def _integer(fields: dict[str, str], key: str) -> int | None:
    value = _number(fields, key)
    if value is not None and value > MOST.get(key, MOST_TOKENS):
        raise ValueError(f"{key} is {value:g}, more than {MOST.get(key, MOST_TOKENS)}")
    return None if value is None else round(value)


def _hash(fields: dict[str, str]) -> int:
    """Of what was measured, not of the value: both metrics of one run get the same, so a run is held out as a whole."""
    parts = [fields.get(key, "") for key in COLUMNS if key != "metric"]
    parts += [fields.get(key, "") for key in ("chunk_len", "rate_rps", "prefix_len", "max_num_batched_tokens")]
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8], "big")
