"""The steps that a kvist server ran during a measurement: has it trace them, and reads the file where it can be read.

A server of kvist's on this machine has this machine's clock in its trace, so its steps are told from others by time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvist.bench.answer_reader import error_message
from kvist.bench.http_connection import HttpServer, StatusError
from kvist.core.errors import ConfigError
from kvist.metrics.step_record import StepRecord
from kvist.metrics.trace_reader import read_events, read_steps

TIMEOUT_S = 10.0


async def start_trace(server: HttpServer) -> Path:
    """Have the server trace its steps; the file, on its machine. Raises ConfigError if it cannot."""
    try:
        answer = msgspec.json.decode(await server.fetch("POST", "/start_profile"))
    except StatusError as error:
        reason = _reason(error.body) or str(error)
        raise ConfigError(
            f"--profile: the server traces no steps ({reason}). kvist serve needs --trace FILE --trace-on-demand"
        ) from error
    if not isinstance(answer, dict) or not isinstance(answer.get("file"), str):
        raise ConfigError("--profile: the server does not say where its trace is, so it is none of kvist's")
    return Path(answer["file"])


async def stop_trace(server: HttpServer) -> None:
    """End the trace. No effect if the server has ended it, or itself, or hangs."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await server.fetch("POST", "/stop_profile")
    except (StatusError, OSError):
        return


def steps_between(path: Path, start_s: float, end_s: float) -> Sequence[StepRecord] | None:
    """The steps in the trace that began within that time of this machine's clock; None if the file is not here."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            steps = [record for _, record in read_steps(read_events(lines))]
    except OSError:
        return None
    return [step for step in steps if start_s <= step.start_s <= end_s]


def _reason(body: bytes) -> str:
    try:
        return error_message(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return ""
