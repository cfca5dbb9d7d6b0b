"""One request's track in a Chrome trace: its life, and in it the times that it waits, is prefilled and decodes."""

from __future__ import annotations

from kvist.core.request_events import Finished
from kvist.metrics.step_record import StepPart


def nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)


def microseconds(time_ns: int) -> str:
    """The format's unit, exact to the nanosecond."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


class RequestTrack:
    """State of the track `number` of process `pid`; each method appends the lines of its events.

    Times are clamped so that they never go back on the track, however they were rounded. quoted_id: as JSON.
    """

    __slots__ = ("_is_waiting", "_last_ns", "_pid", "_waits_since_ns", "is_decoding", "num_decoded_tokens", "number",
                 "quoted_id")  # fmt: skip

    def __init__(self, pid: int, number: int, quoted_id: str, time_ns: int) -> None:
        self._pid = pid
        self.number = number
        self.quoted_id = quoted_id
        self.is_decoding = False
        self.num_decoded_tokens = 0  # since the open decode slice began
        self._is_waiting = True
        self._waits_since_ns = time_ns
        self._last_ns = 0

    def open(self, time_ns: int, lines: list[str]) -> None:
        """Begin the request's slice, or let it and an open decode go on in another file."""
        self._waits_since_ns = time_ns = self._not_before(time_ns)
        lines.append(self._line("B", self.quoted_id, time_ns, '"cat":"request"'))
        if self.is_decoding:
            self.num_decoded_tokens = 0
            lines.append(self._line("B", '"decode"', time_ns))

    def start(self, time_ns: int, num_cached_tokens: int, lines: list[str]) -> None:
        """Leave the queue."""
        time_ns = self._not_before(time_ns)
        waited = (
            f'"dur":{microseconds(time_ns - self._waits_since_ns)},"args":{{"num_cached_tokens":{num_cached_tokens}}}'
        )
        lines.append(self._line("X", '"queued"', self._waits_since_ns, waited))
        self._is_waiting = False

    def prefill(self, start_ns: int, end_ns: int, part: StepPart, lines: list[str]) -> None:
        self._end_decode(start_ns, lines)
        start_ns = self._not_before(start_ns)
        end_ns = self._not_before(end_ns)
        self._is_waiting = False
        lines.append(
            self._line(
                "X",
                '"prefill"',
                start_ns,
                f'"dur":{microseconds(end_ns - start_ns)},"args":{{"num_new_tokens":{part.num_new_tokens},'
                f'"num_context_tokens":{part.num_context_tokens}}}',
            )
        )

    def decode(self, time_ns: int, num_tokens: int, lines: list[str]) -> None:
        """Take new tokens; the first ones begin a slice, at the end of the step that made them."""
        if not self.is_decoding:
            self._is_waiting = False
            self.is_decoding, self.num_decoded_tokens = True, 0
            lines.append(self._line("B", '"decode"', self._not_before(time_ns)))
        self.num_decoded_tokens += num_tokens

    def preempt(self, time_ns: int, num_tokens_lost: int, lines: list[str]) -> None:
        """Lose the blocks and wait again."""
        self._end_decode(time_ns, lines)
        time_ns = self._not_before(time_ns)
        lost = f'"s":"t","args":{{"num_tokens_lost":{num_tokens_lost}}}'
        lines.append(self._line("i", '"preempted"', time_ns, lost))
        self._is_waiting, self._waits_since_ns = True, time_ns

    def finish(self, time_ns: int, event: Finished, lines: list[str]) -> None:
        self._end_decode(time_ns, lines)
        time_ns = self._not_before(time_ns)
        if self._is_waiting:
            waited = f'"dur":{microseconds(time_ns - self._waits_since_ns)}'
            lines.append(self._line("X", '"queued"', self._waits_since_ns, waited))
        lines.append(
            self._line(
                "E",
                self.quoted_id,
                time_ns,
                f'"args":{{"reason":"{event.reason.value}","num_prompt_tokens":{event.num_prompt_tokens},'
                f'"num_output_tokens":{event.num_output_tokens},"num_cached_tokens":{event.num_cached_tokens},'
                f'"num_preemptions":{event.num_preemptions}}}',
            )
        )

    def _end_decode(self, time_ns: int, lines: list[str]) -> None:
        if self.is_decoding:
            self.is_decoding = False
            tokens = f'"args":{{"num_output_tokens":{self.num_decoded_tokens}}}'
            lines.append(self._line("E", '"decode"', self._not_before(time_ns), tokens))

    def _not_before(self, time_ns: int) -> int:
        self._last_ns = max(time_ns, self._last_ns)
        return self._last_ns

    def _line(self, phase: str, quoted_name: str, time_ns: int, rest: str = "") -> str:
        rest = rest and "," + rest
        place = f'"pid":{self._pid},"tid":{self.number}'
        return f',\n{{"name":{quoted_name},"ph":"{phase}",{place},"ts":{microseconds(time_ns)}{rest}}}'
