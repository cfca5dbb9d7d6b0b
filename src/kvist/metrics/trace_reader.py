"""Reads traces that chrome_trace has written, also such as were cut off, an event at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvist.core.errors import ConfigError
from kvist.metrics.step_record import OperationTime, StepRecord

Event = Mapping[str, Any]  # Any: what JSON holds


def read_events(lines: Iterable[str]) -> Iterator[Event]:
    """The events of a trace, an event a line. A last line that is cut off is left out.

    Raises ConfigError for what is not a trace of kvist.
    """
    stream = iter(lines)
    for number, line in enumerate(stream):
        text = line.strip().rstrip(",")
        if number == 0 and not text.startswith("["):
            raise ConfigError("this is not a step trace of kvist: it does not begin with a JSON array")
        text = text.removeprefix("[").strip()
        if not text or text == "]":
            continue
        try:
            event = json.loads(text)
        except ValueError as error:
            if next(stream, None) is None:
                return  # its writer was killed in the middle of it
            raise _not_a_trace(number) from error
        if not isinstance(event, dict) or "ph" not in event:
            raise _not_a_trace(number)
        yield event


def _not_a_trace(number: int) -> ConfigError:
    return ConfigError(f"this is not a step trace of kvist: line {number + 1} holds no event")


def read_steps(events: Iterable[Event]) -> Iterator[tuple[int, StepRecord]]:
    """The steps among `events`, each with the number of its engine (a simulation's trace has several), and with the
    operations that were timed. Parts and queue lengths are left out.
    """
    step: Event | None = None
    operations: list[OperationTime] = []
    for event in events:
        if event.get("cat") == "operation":
            operations.append(OperationTime(event["name"], event["dur"] / 1e6))
        elif event.get("cat") == "step":
            if step is not None:
                yield step["pid"], _step_record(step, operations)
            step, operations = event, []
    if step is not None:
        yield step["pid"], _step_record(step, operations)


def _step_record(event: Event, operations: list[OperationTime]) -> StepRecord:
    counts = {"num_decode_tokens": 0, "num_prefill_tokens": 0} | event["args"]
    known = {name: value for name, value in counts.items() if name in StepRecord.__struct_fields__}
    return StepRecord(start_s=event["ts"] / 1e6, duration_s=event["dur"] / 1e6, operations=operations, **known)
