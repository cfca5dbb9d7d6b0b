"""Writes the trace of a running engine: all turns of its step loop, within a bound of bytes, for little time.

A trace is never a reason to stop: what the disk does not take ends the trace, with a line in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from kvist.config.trace_config import TraceConfig
from kvist.core.errors import ConfigError, InvalidRequestError
from kvist.core.request import RequestId
from kvist.core.request_events import EventBatch
from kvist.core.step_plan import StepPlan
from kvist.metrics.chrome_trace import ChromeTraceWriter
from kvist.metrics.step_record import step_record
from kvist.runtime.operation_sampling import SampledExecutor
from kvist.runtime.trace_file import TraceFile

log = logging.getLogger(__name__)

FLUSH_S, FLUSH_BYTES = 0.25, 256 << 10  # what a killed engine may leave out
MAX_WAITING_SHARE = 1 / 16  # of a trace's bytes: how far a file can go past its half of them


class StepTracer:
    """All methods are called from the thread of the step loop; `now` is its clock. Off until `start`.

    about: facts to show with the trace.
    """

    def __init__(self, config: TraceConfig, executor: SampledExecutor, about: Mapping[str, str]) -> None:
        self._config = config
        self._executor = executor
        self._about = about
        self._max_waiting_bytes = min(FLUSH_BYTES, config.trace_max_bytes * MAX_WAITING_SHARE)
        self._file: TraceFile | None = None
        self._writer: ChromeTraceWriter
        self._flushed_s = 0.0

    @property
    def is_on(self) -> bool:
        return self._file is not None

    def start(self, now: float) -> str:
        """Begin a trace, unless one is being written; return its file. Raises InvalidRequestError if none is
        configured, ConfigError if it cannot be written.
        """
        if self._config.trace is None:
            raise InvalidRequestError("no trace file is set: start kvist with --trace FILE --trace-on-demand")
        if self._file is None:
            self._file = TraceFile(Path(self._config.trace))
            self._writer = ChromeTraceWriter(self._file.write, about=self._about)
            self._executor.sample(self._config.trace_operations_every)
            self._flushed_s = now
        return self._config.trace

    def stop(self) -> str:
        """End the trace and return its file. Raises InvalidRequestError if none is being written."""
        if self._file is None:
            raise InvalidRequestError("no trace is being written")
        file, self._file = self._file, None
        self._executor.sample(0)
        try:
            file.close()
        except OSError as error:
            log.warning("trace not complete file=%s error=%s", self._config.trace, error.strerror)
        return str(self._config.trace)

    def close(self) -> None:
        if self._file is not None:
            self.stop()

    def note_events(self, batch: EventBatch) -> None:
        """Take in what happened outside of a step."""
        if self._file is not None:
            self._writer.add_turn(batch.events)

    def note_refusal(self, request_id: RequestId, reason: str, now: float) -> None:
        if self._file is not None:
            self._writer.add_refusal(request_id, reason, now)

    def note_step(self, plan: StepPlan, batch: EventBatch) -> None:
        """Take in a step that has ended, well or not."""
        if self._file is None:
            return
        self._writer.add_turn(batch.events, step_record(plan, batch, self._executor.take_times(plan.step_id)))
        if batch.time_s - self._flushed_s > FLUSH_S or self._file.num_waiting_bytes > self._max_waiting_bytes:
            self.flush(batch.time_s)

    def flush(self, now: float) -> None:
        """Pass on what waits; begin a new file when this one has its share of the bytes."""
        file = self._file
        if file is None:
            return
        self._flushed_s = now
        try:
            file.flush()
            if 2 * file.num_bytes > self._config.trace_max_bytes:
                self._turn_over(file, now)
        except (OSError, ConfigError) as error:
            log.warning("trace ends file=%s error=%s", self._config.trace, error)
            self.close()

    def _turn_over(self, file: TraceFile, now: float) -> None:
        file.close()
        self._file = None  # if the next line raises, there is none
        self._file = TraceFile(Path(str(self._config.trace)))
        self._writer.restart(self._file.write, now)
