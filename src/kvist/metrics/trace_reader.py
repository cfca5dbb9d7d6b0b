"""Reads traces that chrome_trace has written, also such as were cut off, an event at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from kvist.core.errors import ConfigError
from kvist.metrics.step_record import OperationTime, StepRecord

Event = Mapping[str, Any]  # Any: what JSON holds
# What tells an event's time, by its phase: a slice, what describes a process, anything else.
TIMES: Mapping[str, tuple[str, ...]] = {"X": ("ts", "dur"), "M": ()}
COUNTS = frozenset(StepRecord.__struct_fields__) - {"start_s", "duration_s", "parts", "operations"}


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
            event = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if next(stream, None) is None:
                return  # its writer was killed in the middle of it
            raise _not_a_trace(number) from error
        if not _is_event(event):
            raise _not_a_trace(number)
        yield event


def _is_event(event: Any) -> bool:
    """Whether it has what an event of its kind has, so that readers need not ask again."""
    if not isinstance(event, dict) or not isinstance(event.get("args", {}), dict):
        return False
    phase = event.get("ph")
    if not isinstance(phase, str) or not (phase == "E" or isinstance(event.get("name"), str)):
        return False
    return all(isinstance(event.get(name), int | float) for name in TIMES.get(phase, ("ts",)))


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
                yield step.get("pid", 0), _step_record(step, operations)
            step, operations = event, []
    if step is not None:
        yield step.get("pid", 0), _step_record(step, operations)


def _step_record(event: Event, operations: list[OperationTime]) -> StepRecord:
    counts = {"num_decode_tokens": 0, "num_prefill_tokens": 0} | event.get("args", {})
    known = {name: value for name, value in counts.items() if name in COUNTS}
    try:
        checked: dict[str, Any] = msgspec.convert(known, dict[str, Annotated[int, msgspec.Meta(ge=0)]])
        return StepRecord(start_s=event["ts"] / 1e6, duration_s=event["dur"] / 1e6, operations=operations, **checked)
    except (msgspec.ValidationError, TypeError, KeyError) as error:
        raise ConfigError(f"this is not a step trace of this version of kvist: a step in it: {error}") from error
