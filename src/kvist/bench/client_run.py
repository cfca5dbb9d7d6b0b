"""Sends the requests of a load at their times and notes what comes back. Sums up nothing while others are being timed.

Open loop: a request is sent when it is due, however slow the answers are. Closed loop (`max_concurrency`): at most so
many are open, and one that is due waits for a place, in order. A request that continues another is due a pause after
that one's end.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from kvist.bench.answer_reader import AnswerReader, StreamError
from kvist.bench.http_connection import DisconnectedError, HttpServer, StatusError, now_s
from kvist.bench.precise_timer import PreciseTimer
from kvist.bench.prompt_writer import Answer
from kvist.bench.request_body import BodyWriter
from kvist.core.garbage_collection import without_collections
from kvist.workload.adapting import num_starts
from kvist.workload.trace_record import TraceRecord

TICK_S = 0.5  # between two looks of a progress display
MAX_OPENED_AHEAD = 64  # connections, where requests come one by one
LONGEST_ABSENCE_S = 10.0  # without a connection, after which the server is taken for gone
RECENT = 50  # finished requests that running figures are of


class CallState(StrEnum):
    DUE = "due"
    SENT = "sent"
    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"


@dataclass(slots=True, eq=False)
class Call:
    """One request and what came of it so far. Times are of the clock `now_s`."""

    record: TraceRecord
    due_s: float
    reader: AnswerReader
    state: CallState = CallState.DUE
    sent_s: float | None = None
    ended_s: float | None = None
    error: str = ""

    def mark_sent(self, time_s: float) -> None:
        self.sent_s, self.state = time_s, CallState.SENT

    def end(self, state: CallState, error: str = "") -> None:
        self.state, self.error, self.ended_s = state, error, now_s()

    @property
    def answer(self) -> Answer:
        sample = self.reader.samples[0]
        return Answer(sample.text, sample.token_ids)


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment. Latencies are medians over the latest answers, None before the first."""

    num_requests: int
    num_done: int
    num_failed: int
    num_running: int
    elapsed_s: float
    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """calls: those that became due. start_s, end_s: of the clock `now_s`. cpu_s: what this process used meanwhile.

    lost_server: nobody listened there any more when the last connection was tried.
    """

    calls: Sequence[Call]
    start_s: float
    end_s: float
    cpu_s: float
    was_stopped: bool
    lost_server: bool = False

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(slots=True, eq=False)
class ClientRun:
    """One run of `records` against a server. timeout_s: longest that one answer may take."""

    server: HttpServer
    path: str
    records: Sequence[TraceRecord]
    bodies: BodyWriter
    max_concurrency: int | None = None
    timeout_s: float = 600.0
    on_progress: Callable[[Progress], None] | None = None
    is_sending: bool = False
    _calls: dict[int, Call] = field(default_factory=dict)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _absent_since_s: float | None = None  # no connection could be opened from then on
    _recent: deque[Call] = field(default_factory=lambda: deque(maxlen=RECENT))

    def stop(self) -> None:
        """End the run now; what is open stays unfinished."""
        self._stop.set()

    async def run(self) -> FinishedRun:
        """Send everything and wait for all answers, or until `stop`."""
        self.bodies.prepare(self.records)
        await self.server.open_connections(self._num_ahead())
        followers: dict[int, list[TraceRecord]] = defaultdict(list)
        for record in self.records:
            if record.after is not None:
                followers[record.after].append(record)
        places = asyncio.Semaphore(self.max_concurrency) if self.max_concurrency else None
        self.is_sending = True
        gc.collect()
        # Over a million pieces a collection would stop the clock for tens of milliseconds.
        with PreciseTimer() as timer, without_collections():
            cpu_s, start_s = time.process_time(), now_s()

            async def follow(record: TraceRecord, ready_s: float) -> None:
                call = await self._serve(record, ready_s + record.arrival_s, timer, places)
                assert call.ended_s is not None
                ended_s = call.ended_s
                async with asyncio.TaskGroup() as next_ones:
                    for follower in followers[record.index]:
                        next_ones.create_task(follow(follower, ended_s))

            ticking = asyncio.create_task(self._tick(start_s))
            starts = [record for record in self.records if record.after is None]
            work = asyncio.gather(*(follow(record, start_s) for record in starts))
            stopping = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                end_s, cpu_s = now_s(), time.process_time() - cpu_s
                was_stopped = not work.done()
                for task in (work, stopping, ticking):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
        ends = [call.ended_s for call in self._calls.values() if call.ended_s is not None]
        return FinishedRun(
            calls=[self._calls[index] for index in sorted(self._calls)],
            start_s=start_s,
            end_s=end_s if was_stopped else max(ends, default=end_s),
            cpu_s=cpu_s,
            was_stopped=was_stopped,
            lost_server=self._absent_since_s is not None,
        )

    async def _serve(
        self, record: TraceRecord, due_s: float, timer: PreciseTimer, places: asyncio.Semaphore | None
    ) -> Call:
        await timer.wait_until(due_s)
        call = self._calls[record.index] = Call(record, due_s, AnswerReader(record.n))
        if record.after is not None and self._calls[record.after].state is not CallState.COMPLETED:
            call.end(CallState.FAILED, "not sent: it continues a request that failed")
            return call
        if places is None:
            await self._send(call)
        else:
            async with places:
                await self._send(call)
        return call

    async def _send(self, call: Call) -> None:
        try:
            body = self.bodies.write(call.record, lambda index: self._calls[index].answer)
            async with asyncio.timeout(self.timeout_s):
                await self.server.send("POST", self.path, body, call.reader, call.mark_sent)
            call.reader.finish()
        except StatusError as error:
            is_rejected = error.status in (429, 503)
            call.end(CallState.REJECTED if is_rejected else CallState.FAILED, str(error))
        except TimeoutError:
            call.end(CallState.FAILED, f"no answer within {self.timeout_s:g} s")
        except DisconnectedError as error:
            call.end(CallState.FAILED, str(error))
        except OSError as error:
            call.end(CallState.FAILED, f"no connection: {error.strerror or error}")
            self._note_absence()
        except StreamError as error:
            call.end(CallState.FAILED, str(error))
        else:
            call.end(CallState.COMPLETED)
            self._absent_since_s = None
            self._recent.append(call)

    def _note_absence(self) -> None:
        """End the run where there has been no server for long: all later requests would fail as this one did."""
        if self._absent_since_s is None:
            self._absent_since_s = now_s()
        elif now_s() - self._absent_since_s > LONGEST_ABSENCE_S:
            self.stop()

    def _num_ahead(self) -> int:
        """Connections to open before the start: for what comes in its first second, and some for what comes later."""
        early = sum(record.after is None and record.arrival_s < 1.0 for record in self.records)
        ahead = min(max(early, MAX_OPENED_AHEAD), num_starts(self.records))
        return min(ahead, self.max_concurrency) if self.max_concurrency else ahead

    async def _tick(self, start_s: float) -> None:
        while self.on_progress is not None:
            self.on_progress(self._progress(start_s))
            await asyncio.sleep(TICK_S)

    def _progress(self, start_s: float) -> Progress:
        states = [call.state for call in self._calls.values()]
        return Progress(
            num_requests=len(self.records),
            num_done=states.count(CallState.COMPLETED),
            num_failed=states.count(CallState.FAILED) + states.count(CallState.REJECTED),
            num_running=states.count(CallState.SENT),
            elapsed_s=now_s() - start_s,
            ttft_s=_median(_ttft_s(call) for call in self._recent),
            tpot_s=_median(_tpot_s(call) for call in self._recent),
        )


def _ttft_s(call: Call) -> float | None:
    pieces = call.reader.samples[0].pieces
    return pieces[0][0] - call.sent_s if pieces and call.sent_s is not None else None


def _tpot_s(call: Call) -> float | None:
    pieces, num_tokens = call.reader.samples[0].pieces, call.record.num_output_tokens
    return (pieces[-1][0] - pieces[0][0]) / (num_tokens - 1) if len(pieces) > 1 and num_tokens > 1 else None


def _median(values: Iterator[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None
