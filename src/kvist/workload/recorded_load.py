"""Recorded loads: those that ship with kvist, and files in whichever of the known formats they are."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Mapping
from importlib.resources import as_file, files
from pathlib import Path

import msgspec

from kvist.core.errors import ConfigError
from kvist.workload.trace_files import (
    read_azure,
    read_burst_gpt,
    read_jsonl,
    read_lengths,
    read_mooncake,
)
from kvist.workload.trace_record import TraceRecord

MAX_LINE_CHARACTERS = 1 << 22
# Name -> file beside this one, and tokens per block id. Where they come from: see NOTICE.
SHIPPED_TRACES = {
    "mooncake_conversation": ("mooncake_conversation.jsonl.gz", 512),
    "sharegpt_multi_turn": ("sharegpt_multi_turn.jsonl.gz", 16),
}
# Format -> the column that only it has, and its reader.
CSV_READERS: Mapping[str, tuple[str, Callable[[Path], list[TraceRecord]]]] = {
    "azure": ("ContextTokens", read_azure),
    "burstgpt": ("Request tokens", read_burst_gpt),
    "lengths": ("num_prefill_tokens", read_lengths),
}
TRACE_FORMATS = ("mooncake", "jsonl", *CSV_READERS)
ABOUT_FORMATS = "Mooncake's JSONL, kvist's own JSONL, the CSVs of Azure and BurstGPT, and CSVs of lengths"


def read_shipped_trace(name: str) -> list[TraceRecord]:
    """The requests of one of SHIPPED_TRACES."""
    file, block_tokens = SHIPPED_TRACES[name]
    with as_file(files("kvist.workload").joinpath("traces", file)) as path:
        return read_mooncake(path, block_tokens=block_tokens)


def read_recorded_load(
    path: Path, trace_format: str | None = None, *, block_tokens: int | None = None
) -> list[TraceRecord]:
    """The requests of a trace file, packed by gzip or not, at least one.

    trace_format: one of TRACE_FORMATS; None to tell by the first line. block_tokens: see read_mooncake.
    Raises ConfigError if it cannot be read, is of no known format or holds no request.
    """
    chosen = trace_format or _format_of(path)
    if chosen == "mooncake":
        records = read_mooncake(path, block_tokens=block_tokens)
    elif chosen == "jsonl":
        records = read_jsonl(path)
    else:
        records = CSV_READERS[chosen][1](path)
    if not records:
        raise ConfigError(f"the trace {path} holds no request")
    return records


def _format_of(path: Path) -> str:
    first = _first_line(path)
    if first.startswith("{"):
        return "mooncake" if _has_block_ids(first) else "jsonl"
    try:
        columns = {name.strip() for name in next(csv.reader([first]), [])}
    except csv.Error:
        columns = set()
    for name, (column, _) in CSV_READERS.items():
        if column in columns:
            return name
    raise ConfigError(
        f"{path} is no trace that kvist knows; there are {ABOUT_FORMATS}. Its first line is {first[:60]!r}"
    )


def _first_line(path: Path) -> str:
    """The first line that is not blank, at most MAX_LINE_CHARACTERS of it."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig", errors="replace")
        ) as lines:
            while line := lines.readline(MAX_LINE_CHARACTERS):
                if line.strip():
                    return line.strip()
            return ""
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error


def _has_block_ids(line: str) -> bool:
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(document, dict) and "hash_ids" in document
