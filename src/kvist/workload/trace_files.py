"""Reads recorded loads: Mooncake's JSONL, Azure's and BurstGPT's CSV, lists of lengths, our own JSONL."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from kvist.core.errors import ConfigError
from kvist.workload.arrival_process import spread_grid
from kvist.workload.trace_record import TextPart, TraceRecord

MOONCAKE_BLOCK_TOKENS = 512


class _MooncakeLine(msgspec.Struct):
    timestamp: float  # ms
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_mooncake(path: Path, *, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> list[TraceRecord]:
    """One request a line: timestamp in ms, lengths, and one id per block of the prompt; equal ids are equal tokens.

    A prompt's tokens are its blocks' texts, so shared prefixes really repeat.
    """
    decoder = msgspec.json.Decoder(_MooncakeLine)
    lines = [_decode(decoder, line, path, number) for number, line in _lines(path)]
    times = spread_grid([line.timestamp / 1e3 for line in lines])
    return [
        TraceRecord(
            index=index,
            arrival_s=time_s - times[0],
            prompt=tuple(
                TextPart(f"{path.name}/{block}", 0, min(block_tokens, line.input_length - i * block_tokens))
                for i, block in enumerate(line.hash_ids)
                if line.input_length > i * block_tokens
            ),
            num_output_tokens=max(1, line.output_length),
        )
        for index, (line, time_s) in enumerate(zip(lines, times, strict=True))
    ]


def read_azure(path: Path) -> list[TraceRecord]:
    """CSV with TIMESTAMP, ContextTokens, GeneratedTokens."""
    return _from_rows(path, _azure_time_s, "TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_burst_gpt(path: Path) -> list[TraceRecord]:
    """CSV with Timestamp (s), Request tokens, Response tokens; failed requests (no response tokens) are left out."""
    return _from_rows(path, float, "Timestamp", "Request tokens", "Response tokens")


def read_lengths(path: Path) -> list[TraceRecord]:
    """CSV with num_prefill_tokens, num_decode_tokens; all come at once."""
    return _from_rows(path, None, "", "num_prefill_tokens", "num_decode_tokens")


def read_jsonl(path: Path) -> list[TraceRecord]:
    """Our own format: a TraceRecord as one JSON object a line."""
    decoder = msgspec.json.Decoder(TraceRecord)
    records = [_decode(decoder, line, path, number) for number, line in _lines(path)]
    for place, record in enumerate(records):
        if record.index != place or (record.after is not None and not 0 <= record.after < place):
            raise ConfigError(f"{path}: record {place} has index {record.index} and follows {record.after}")
    return records


def write_jsonl(records: list[TraceRecord]) -> bytes:
    """The bytes that `read_jsonl` reads."""
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def _from_rows(
    path: Path, time_of: Callable[[str], float] | None, time_column: str, input_column: str, output_column: str
) -> list[TraceRecord]:
    entries: list[tuple[float, int, int]] = []
    for number, row in _rows(path):
        try:
            time_s = time_of(row[time_column]) if time_of else 0.0
            entries.append((time_s, int(row[input_column]), int(row[output_column])))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}, row {number}: needs columns {time_column}, {input_column}, {output_column} ({error!r})"
            ) from error
    entries = sorted(entry for entry in entries if entry[1] > 0 and entry[2] > 0)
    times = spread_grid([time_s for time_s, _, _ in entries]) if time_of else [0.0] * len(entries)
    return [
        TraceRecord(
            index=index,
            arrival_s=times[index] - times[0],
            prompt=(TextPart(f"{path.name}/{index}", 0, num_input),),
            num_output_tokens=num_output,
        )
        for index, (_, num_input, num_output) in enumerate(entries)
    ]


def _azure_time_s(text: str) -> float:
    return datetime.fromisoformat(text.strip()[:26] + "+00:00").timestamp()


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    text = _read(path).decode("utf-8", errors="replace")  # what is not text is no number: refused by row
    return enumerate(csv.DictReader(io.StringIO(text)), 2)


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
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}, line {number}: {error}") from error
