"""Reads recorded loads: Mooncake's JSONL, Azure's and BurstGPT's CSV, lists of lengths, our own JSONL."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvist.core.errors import ConfigError
from kvist.workload.arrival_process import spread_grid
from kvist.workload.record_check import check_records
from kvist.workload.trace_record import TextPart, TraceRecord

T = TypeVar("T", int, float)
# Tokens per block id, in the order in which they are tried: Mooncake's, then those of traces in the same format.
BLOCK_TOKENS = (512, 16, 32, 64, 128, 256, 1024, 2048)


class _MooncakeLine(msgspec.Struct):
    timestamp: float  # ms
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_mooncake(path: Path, *, block_tokens: int | None = None) -> list[TraceRecord]:
    """One request a line: timestamp in ms, lengths, and one id per block of the prompt; equal ids are equal tokens.

    A prompt's tokens are its blocks' texts, so shared prefixes really repeat; what is left after its blocks is a text
    of its own. block_tokens: None for the first of BLOCK_TOKENS that fits the lengths of all prompts.
    """
    decoder = msgspec.json.Decoder(_MooncakeLine)
    numbered = [(number, _decode(decoder, line, path, number)) for number, line in _lines(path)]
    for number, line in numbered:
        _check_mooncake_line(line, f"{path}, line {number}")
    lines = sorted((line for _, line in numbered), key=lambda line: line.timestamp)
    size = _block_tokens(lines, path) if block_tokens is None else block_tokens
    times = spread_grid([line.timestamp / 1e3 for line in lines])
    records = [
        TraceRecord(
            index=index,
            arrival_s=time_s - times[0],
            prompt=tuple(_mooncake_parts(line, size, path.name, index)),
            num_output_tokens=max(1, line.output_length),
        )
        for index, (line, time_s) in enumerate(zip(lines, times, strict=True))
    ]
    check_records(records, str(path))
    return records


def _check_mooncake_line(line: _MooncakeLine, where: str) -> None:
    if line.input_length < 1 or line.output_length < 0:
        raise ConfigError(f"{where}: lengths of {line.input_length} and {line.output_length} tokens are no request's")


def _block_tokens(lines: Sequence[_MooncakeLine], path: Path) -> int:
    for size in BLOCK_TOKENS:
        if all(_fits(line, size) for line in lines):
            return size
    raise ConfigError(
        f"{path}: the numbers of its block ids fit its prompts' lengths with blocks of none of "
        f"{', '.join(map(str, BLOCK_TOKENS))} tokens; --trace-block-tokens says how many a block has"
    )


def _fits(line: _MooncakeLine, size: int) -> bool:
    """Whether its ids are those of its whole blocks, or of all its blocks; without any it shares nothing."""
    return len(line.hash_ids) in (0, line.input_length // size, -(-line.input_length // size))


def _mooncake_parts(line: _MooncakeLine, block_tokens: int, name: str, index: int) -> Iterator[TextPart]:
    for place, block in enumerate(line.hash_ids):
        left = line.input_length - place * block_tokens
        if left > 0:
            yield TextPart(f"{name}/{block}", 0, min(block_tokens, left))
    rest = line.input_length - len(line.hash_ids) * block_tokens
    if rest > 0:
        yield TextPart(f"{name}/rest/{index}", 0, rest)


def read_azure(path: Path) -> list[TraceRecord]:
    """CSV with TIMESTAMP, ContextTokens, GeneratedTokens; a time without a zone is in UTC."""
    return _from_rows(path, _azure_time_s, "TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_burst_gpt(path: Path) -> list[TraceRecord]:
    """CSV with Timestamp (s), Request tokens, Response tokens; failed requests (no response tokens) are left out."""
    return _from_rows(path, float, "Timestamp", "Request tokens", "Response tokens")


def read_lengths(path: Path) -> list[TraceRecord]:
    """CSV with num_prefill_tokens, num_decode_tokens; all come at once."""
    return _from_rows(path, None, None, "num_prefill_tokens", "num_decode_tokens")


def read_jsonl(path: Path) -> list[TraceRecord]:
    """Our own format: a TraceRecord as one JSON object a line."""
    decoder = msgspec.json.Decoder(TraceRecord)
    records = [_decode(decoder, line, path, number) for number, line in _lines(path)]
    check_records(records, str(path))
    return records


def write_jsonl(records: list[TraceRecord]) -> bytes:
    """The bytes that `read_jsonl` reads."""
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def _from_rows(
    path: Path, time_of: Callable[[str], float] | None, time_column: str | None, input_column: str, output_column: str
) -> list[TraceRecord]:
    """Rows without an input or without an output are no requests."""
    entries: list[tuple[float, int, int]] = []
    for number, row in _rows(path, [name for name in (time_column, input_column, output_column) if name is not None]):
        where = f"{path}, row {number}"
        time_s = 0.0 if time_of is None or time_column is None else _value(time_of, row, time_column, where)
        if not math.isfinite(time_s):
            raise ConfigError(f"{where}, column {time_column}: {time_s} is no time")
        entries.append((time_s, _value(_count, row, input_column, where), _value(_count, row, output_column, where)))
    entries = sorted(entry for entry in entries if entry[1] > 0 and entry[2] > 0)
    times = [0.0] * len(entries) if time_of is None else spread_grid([time_s for time_s, _, _ in entries])
    records = [
        TraceRecord(
            index=index,
            arrival_s=times[index] - times[0],
            prompt=(TextPart(f"{path.name}/{index}", 0, num_input),),
            num_output_tokens=num_output,
        )
        for index, (_, num_input, num_output) in enumerate(entries)
    ]
    check_records(records, str(path))
    return records


def _value(kind: Callable[[str], T], row: Mapping[str, str | None], column: str, where: str) -> T:
    text = row[column]
    if text is None:
        raise ConfigError(f"{where} has no column {column}: it is cut off")
    try:
        return kind(text)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{where}, column {column}: cannot read {text[:40]!r}") from error


def _count(text: str) -> int:
    """A whole number of 0 or more; "12.0", as spreadsheets write it, is one."""
    value = int(text) if text.strip().isdigit() else float(text)
    if value < 0 or value != int(value):
        raise ValueError(text)
    return int(value)


def _azure_time_s(text: str) -> float:
    time = datetime.fromisoformat(text.strip())
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    """The rows after the first, by column. Raises ConfigError if one of `columns` is not there."""
    text = _read(path).decode("utf-8-sig", errors="replace")  # what is not text is no number: refused by row
    rows = csv.DictReader(io.StringIO(text))
    try:
        names = [name.strip() for name in rows.fieldnames or ()]
        missing = [column for column in columns if column not in names]
        if missing:
            raise ConfigError(f"{path} has no column {missing[0]}; it needs {', '.join(columns)}")
        rows.fieldnames = names
        yield from enumerate(rows, 2)
    except csv.Error as error:
        raise ConfigError(f"{path}, line {rows.line_num + 1}: this is no CSV: {error}") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(_read(path).splitlines(), 1) if line.strip())


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error


def _decode(decoder: msgspec.json.Decoder[Any], line: bytes, path: Path, number: int) -> Any:
    """Any: what the decoder is of."""
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{path}, line {number}: {error}") from error
