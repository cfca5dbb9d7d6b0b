"""Says whether recorded requests make sense, before anything is run with them. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.core.errors import ConfigError
from kvist.workload.trace_record import AnswerPart, TextPart, TraceRecord

MAX_TIME_S = 1e9  # 31 years
MAX_LENGTH_TOKENS = 2**26  # of one prompt or answer, and of what a text is read from
MAX_SAMPLES = 1024


def check_records(records: Sequence[TraceRecord], where: str) -> None:
    """Raise ConfigError, naming `where` and the request, for the first one that nobody could send."""
    for place, record in enumerate(records):
        problem = _problem(records, place, record)
        if problem is not None:
            raise ConfigError(f"{where}: request {place} {problem}")


def _problem(records: Sequence[TraceRecord], place: int, record: TraceRecord) -> str | None:
    if record.index != place:
        return f"has index {record.index}: requests are numbered from 0 in the order of the file"
    if record.after is not None and not 0 <= record.after < place:
        return f"comes after request {record.after}, which is not one before it"
    if not 0 <= record.arrival_s <= MAX_TIME_S:
        return f"comes at {record.arrival_s:g} s; times lie between 0 and {MAX_TIME_S:g} s"
    if not 1 <= record.num_output_tokens <= MAX_LENGTH_TOKENS:
        return f"asks for {record.num_output_tokens} tokens; an answer has 1 to {MAX_LENGTH_TOKENS}"
    if not 1 <= record.n <= MAX_SAMPLES:
        return f"asks for {record.n} samples; there may be 1 to {MAX_SAMPLES}"
    return _problem_of_prompt(records, record)


def _problem_of_prompt(records: Sequence[TraceRecord], record: TraceRecord) -> str | None:
    num_tokens = 0
    for part in record.prompt:
        if isinstance(part, TextPart):
            if part.start < 0 or part.num_tokens < 0 or part.start + part.num_tokens > MAX_LENGTH_TOKENS:
                return (
                    f"has {part.num_tokens} tokens from token {part.start} on of the text {part.text_id!r}; a text "
                    f"has those from 0 to {MAX_LENGTH_TOKENS}"
                )
            num_tokens += part.num_tokens
        elif not _follows(records, record, part):
            return f"holds the answer of request {part.index}, which it does not follow"
        else:
            num_tokens += records[part.index].num_output_tokens
    if not 1 <= num_tokens <= MAX_LENGTH_TOKENS:
        return f"has a prompt of {num_tokens} tokens; a prompt has 1 to {MAX_LENGTH_TOKENS}"
    return None


def _follows(records: Sequence[TraceRecord], record: TraceRecord, part: AnswerPart) -> bool:
    """Whether the answer is there when `record` is sent: that of the one before it, or before that, and so on."""
    before = record.after
    while before is not None and before > part.index:
        before = records[before].after
    return before == part.index
