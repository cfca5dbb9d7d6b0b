"""Recorded loads: those that ship with kvist, and files in whichever of the known formats they are."""

from __future__ import annotations

import csv
import gzip
from importlib.resources import as_file, files
from pathlib import Path

import msgspec

from kvist.core.errors import ConfigError
from kvist.workload.trace_files import (
    MOONCAKE_BLOCK_TOKENS,
    read_azure,
    read_burst_gpt,
    read_jsonl,
    read_lengths,
    read_mooncake,
)
from kvist.workload.trace_record import TraceRecord

# Name -> file beside this one, and tokens per block id. Where they come from: see NOTICE.
SHIPPED_TRACES = {
    "mooncake_conversation": ("mooncake_conversation.jsonl.gz", MOONCAKE_BLOCK_TOKENS),
    "sharegpt_multi_turn": ("sharegpt_multi_turn.jsonl.gz", 16),
}

FORMATS = "Mooncake's JSONL, kvist's own JSONL, the CSVs of Azure and BurstGPT, and CSVs of lengths"


def read_shipped_trace(name: str) -> list[TraceRecord]:
    """The requests of one of SHIPPED_TRACES."""
    file, block_tokens = SHIPPED_TRACES[name]
    with as_file(files("kvist.workload").joinpath("traces", file)) as path:
        return read_mooncake(path, block_tokens=block_tokens)


def read_recorded_load(path: Path, *, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> list[TraceRecord]:
    """The requests of a trace file, packed by gzip or not. block_tokens: of a trace of block ids.

    Raises ConfigError if it cannot be read or is of no known format.
    """
    first = _first_line(path)
    if first.startswith("{"):
        return read_mooncake(path, block_tokens=block_tokens) if _has_block_ids(first) else read_jsonl(path)
    columns = {name.strip() for name in next(csv.reader([first]), [])}
    for needed, reader in (
        ({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, read_azure),
        ({"Timestamp", "Request tokens", "Response tokens"}, read_burst_gpt),
        ({"num_prefill_tokens", "num_decode_tokens"}, read_lengths),
    ):
        if needed <= columns:
            return reader(path)
    raise ConfigError(f"{path} is no trace that kvist knows; there are {FORMATS}")


def _first_line(path: Path) -> str:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as packed:
                return packed.readline()
        with path.open(encoding="utf-8", errors="replace") as plain:
            return plain.readline()
    except (OSError, EOFError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error


def _has_block_ids(line: str) -> bool:
    try:
        document = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return isinstance(document, dict) and "hash_ids" in document
