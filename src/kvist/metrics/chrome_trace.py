"""Writes steps and requests as a trace that Perfetto and chrome://tracing draw: one JSON array, an event a line.

Format: the Trace Event Format's array form. Pure: text goes to whoever is given, times come with what is recorded.

Tracks: the engine's steps; the operations of those steps that were timed; refusals; counters of tokens, requests and
KV blocks; and a track for each request that is open at the same time, on which it waits, is prefilled and decodes.
Slices on a track nest or follow each other, and their times never go back.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from kvist.core.request import RequestId
from kvist.core.request_events import (
    ChunkCut,
    Finished,
    Preempted,
    PromptScored,
    Queued,
    RequestEvent,
    Scheduled,
    TokensSampled,
)
from kvist.metrics.step_record import StepRecord
from kvist.metrics.trace_track import RequestTrack, microseconds, nanoseconds

PIDS_PER_ENGINE = 2  # steps, requests
STEPS_TID, OPERATIONS_TID, REFUSALS_TID = 1, 2, 3

_STEP_COUNTS = (
    "num_decode_tokens", "num_prefill_tokens", "num_cached_tokens", "num_draft_tokens", "num_padding_tokens",
    "num_sequences", "num_sampled", "decode_context_tokens", "prefill_pairs", "prefill_context_tokens",
)  # fmt: skip


class ChromeTraceWriter:
    """Turns turns of the step loop into trace events. `write` gets text that ends with a whole event.

    What has been written is a JSON array without its closing bracket, which both viewers read; `end` closes it.
    about: facts shown with the trace (model, version, ...).
    engine, number: its name and number where several engines write into one trace; number 0 begins the array.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        about: Mapping[str, str] | None = None,
        engine: str = "kvist engine",
        number: int = 0,
    ) -> None:
        self._write = write
        self._engine, self._number = engine, number
        self._steps_pid = 1 + PIDS_PER_ENGINE * number
        self._requests_pid = self._steps_pid + 1
        self._about = dict(about or {})
        self._tracks: dict[RequestId, RequestTrack] = {}
        self._free_numbers: list[int] = []
        self._num_tracks = 0
        self._counters: dict[str, tuple[int, ...]] = {}
        self._last_step_end_ns = 0
        self._begin(0)

    def restart(self, write: Callable[[str], object], now: float) -> None:
        """Go on with another text, as a trace of its own: what is open goes on in it from `now`."""
        self._write = write
        self._counters.clear()
        self._begin(nanoseconds(now))

    def end(self) -> None:
        """Close the array. Nothing may be added afterwards, but for `restart`."""
        self._write("\n]\n")

    def add_turn(self, events: Sequence[RequestEvent], step: StepRecord | None = None) -> None:
        """Add what one turn brought: events in order and, if a step ended in it, its record."""
        lines: list[str] = []
        for event in events:
            track = self._tracks.get(event.request_id)
            if type(event) is TokensSampled and track is not None and track.is_decoding and step is None:
                track.num_decoded_tokens += len(event.token_ids)
                continue
            if step is not None and isinstance(event, TokensSampled | Finished | PromptScored):
                self._add_step(step, lines)  # its chunks come before what they led to
                step = None
            self._add_event(event, lines)
        if step is not None:
            self._add_step(step, lines)
        if lines:
            self._write("".join(lines))

    def add_refusal(self, request_id: RequestId, reason: str, time_s: float) -> None:
        """Mark a request that the engine did not take."""
        args = json.dumps({"request_id": request_id, "reason": reason})
        ts = microseconds(nanoseconds(time_s))
        place = f'"pid":{self._steps_pid},"tid":{REFUSALS_TID}'
        self._write(f',\n{{"name":"refused","ph":"i","s":"t",{place},"ts":{ts},"args":{args}}}')

    # --- requests ---

    def _add_event(self, event: RequestEvent, lines: list[str]) -> None:
        if isinstance(event, PromptScored | ChunkCut):
            return
        time_ns = nanoseconds(event.time_s)
        track = self._tracks.get(event.request_id)
        if track is None:
            if isinstance(event, Finished):
                return
            track = self._open_track(event.request_id, time_ns, lines)
        if isinstance(event, Queued):
            return
        if isinstance(event, Scheduled):
            track.start(time_ns, event.num_cached_tokens, lines)
        elif isinstance(event, TokensSampled):
            track.decode(time_ns, len(event.token_ids), lines)
        elif isinstance(event, Preempted):
            track.preempt(time_ns, event.num_tokens_lost, lines)
        else:
            track.finish(time_ns, event, lines)
            del self._tracks[event.request_id]
            heapq.heappush(self._free_numbers, track.number)

    def _open_track(self, request_id: RequestId, time_ns: int, lines: list[str]) -> RequestTrack:
        if self._free_numbers:
            number = heapq.heappop(self._free_numbers)
        else:
            self._num_tracks += 1
            number = self._num_tracks
            lines.append(_name("thread_name", self._requests_pid, number, f"request {number}"))
        track = RequestTrack(self._requests_pid, number, json.dumps(str(request_id)), time_ns)
        self._tracks[request_id] = track
        track.open(time_ns, lines)
        return track

    # --- steps ---

    def _add_step(self, step: StepRecord, lines: list[str]) -> None:
        start_ns, end_ns = nanoseconds(step.start_s), nanoseconds(step.end_s)
        start_ns = max(start_ns, self._last_step_end_ns)
        end_ns = max(end_ns, start_ns)
        counts = "".join(f',"{name}":{value}' for name in _STEP_COUNTS if (value := getattr(step, name)))
        lines.append(
            f',\n{{"name":"{step.kind}","cat":"step","ph":"X","pid":{self._steps_pid},"tid":1,'
            f'"ts":{microseconds(start_ns)},'
            f'"dur":{microseconds(end_ns - start_ns)},"args":{{"step_id":{step.step_id}{counts}}}}}'
        )
        self._add_operations(step, start_ns, end_ns, lines)
        self._add_counters(step, start_ns, end_ns, lines)
        self._last_step_end_ns = end_ns
        for part in step.parts:
            track = self._tracks.get(part.request_id)
            if track is None:  # it was running when the trace began
                track = self._open_track(part.request_id, start_ns, lines)
            track.prefill(start_ns, end_ns, part, lines)

    def _add_operations(self, step: StepRecord, start_ns: int, end_ns: int, lines: list[str]) -> None:
        """Order and durations are measured; that the first begins with the step, and no time passes between, is not."""
        # Hundreds of lines: what is the same in each is made once, and only floats are formatted.
        place = f'"pid":{self._steps_pid},"tid":{OPERATIONS_TID}'
        heads = {
            name: f',\n{{"name":{json.dumps(name)},"cat":"operation","ph":"X",{place},"ts":'
            for name in {operation.name for operation in step.operations}
        }
        time_ns = start_ns
        for operation in step.operations:
            duration_ns = min(int(operation.duration_s * 1e9), end_ns - time_ns)
            lines.append(f'{heads[operation.name]}{time_ns / 1e3:.3f},"dur":{duration_ns / 1e3:.3f}}}')
            time_ns += duration_ns

    def _add_counters(self, step: StepRecord, start_ns: int, end_ns: int, lines: list[str]) -> None:
        if start_ns - self._last_step_end_ns > 1_000_000 and self._last_step_end_ns:
            self._count("step tokens", self._last_step_end_ns, _TOKEN_SERIES, (0, 0, 0, 0, 0), lines)
        tokens = (
            step.num_decode_tokens, step.num_prefill_tokens, step.num_cached_tokens, step.num_draft_tokens,
            step.num_padding_tokens,
        )  # fmt: skip
        self._count("step tokens", start_ns, _TOKEN_SERIES, tokens, lines)
        self._count("requests", end_ns, ("running", "waiting"), (step.num_running, step.num_waiting), lines)
        blocks = (step.num_used_blocks, step.num_cached_blocks, step.num_free_blocks)
        self._count("KV blocks", end_ns, ("used", "cached", "free"), blocks, lines)

    def _count(self, name: str, time_ns: int, series: Sequence[str], values: tuple[int, ...], lines: list[str]) -> None:
        """Add a counter's values if they changed: viewers hold the last ones."""
        if self._counters.get(name) == values:
            return
        self._counters[name] = values
        args = ",".join(f'"{key}":{value}' for key, value in zip(series, values, strict=True))
        place = f'"pid":{self._steps_pid},"ts":{microseconds(time_ns)}'
        lines.append(f',\n{{"name":"{name}","ph":"C",{place},"args":{{{args}}}}}')

    # --- the array ---

    def _begin(self, time_ns: int) -> None:
        first = _name("process_name", self._steps_pid, 0, self._engine)
        lines = [first if self._number else "[" + first.removeprefix(",")]
        requests = f"requests of {self._engine}" if self._number else "requests"
        lines.append(_name("process_name", self._requests_pid, 0, requests))
        about = ", ".join(f"{name} {value}" for name, value in self._about.items())
        if about:
            lines.append(_name("process_labels", self._steps_pid, 0, about, key="labels"))
        names = {STEPS_TID: "steps", OPERATIONS_TID: "operations (of some steps)", REFUSALS_TID: "refusals"}
        lines += (_name("thread_name", self._steps_pid, tid, name) for tid, name in names.items())
        lines += (_name("thread_name", self._requests_pid, n, f"request {n}") for n in range(1, self._num_tracks + 1))
        for track in self._tracks.values():
            track.open(time_ns, lines)
        self._write("".join(lines))


_TOKEN_SERIES = ("decode", "prefill", "cached", "draft", "padding")


def _name(kind: str, pid: int, tid: int, name: str, *, key: str = "name") -> str:
    return f',\n{{"name":"{kind}","ph":"M","pid":{pid},"tid":{tid},"args":{{"{key}":{json.dumps(name)}}}}}'


def write_chrome_trace(
    write: Callable[[str], object],
    turns: Iterable[tuple[Sequence[RequestEvent], StepRecord | None]],
    *,
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a whole trace: each turn's events with the record of the step that ended in it, if any."""
    writer = ChromeTraceWriter(write, about=about)
    for events, step in turns:
        writer.add_turn(events, step)
    writer.end()
