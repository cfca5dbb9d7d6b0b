"""Fits a load to another model, another machine or a shorter run, without changing what its requests share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvist.core.errors import ConfigError
from kvist.workload.trace_record import AnswerPart, TextPart, TraceRecord, count_prompt_tokens


def scale_lengths(records: Sequence[TraceRecord], factor: float) -> list[TraceRecord]:
    """Prompts and answers `factor` times as long, at least a token each. What is shared stays shared."""
    if factor == 1.0:
        return list(records)
    return [
        msgspec.structs.replace(
            record,
            prompt=tuple(_scale_part(part, factor) for part in record.prompt),
            num_output_tokens=max(1, round(record.num_output_tokens * factor)),
        )
        for record in records
    ]


def with_total_length(records: Sequence[TraceRecord], max_tokens: int) -> list[TraceRecord]:
    """Answers cut so that prompt and answer fit a model's length. Prompts stay, and an answer has a token at least."""
    return [
        msgspec.structs.replace(record, num_output_tokens=max(1, min(record.num_output_tokens, max_tokens - prompt)))
        for record, prompt in zip(records, count_prompt_tokens(records), strict=True)
    ]


def scale_times(records: Sequence[TraceRecord], factor: float) -> list[TraceRecord]:
    """Arrivals and pauses `factor` times as far apart: 0.5 is twice as fast."""
    return [msgspec.structs.replace(record, arrival_s=record.arrival_s * factor) for record in records]


def with_arrivals(records: Sequence[TraceRecord], times: Sequence[float]) -> list[TraceRecord]:
    """Other arrival times, in order, for the records that follow no other. Pauses stay."""
    if len(times) != num_starts(records):
        raise ConfigError(f"{len(times)} arrival times for {num_starts(records)} requests")
    coming = iter(times)
    return [
        record if record.after is not None else msgspec.structs.replace(record, arrival_s=next(coming))
        for record in records
    ]


def at_mean_rate(records: Sequence[TraceRecord], rate_per_s: float) -> list[TraceRecord]:
    """The same arrivals, faster or slower, so that the mean rate of those that follow nobody is `rate_per_s`.

    Those that came all at once come evenly. Pauses stay.
    """
    stretch = arrival_stretch(records, rate_per_s)
    if stretch is None:
        return with_arrivals(records, [number / rate_per_s for number in range(num_starts(records))])
    return with_arrivals(records, [record.arrival_s * stretch for record in records if record.after is None])


def arrival_stretch(records: Sequence[TraceRecord], rate_per_s: float) -> float | None:
    """By what to multiply arrivals for that mean rate of those that follow nobody; None if they come all at once."""
    first = [record.arrival_s for record in records if record.after is None]
    span_s = max(first) - min(first)
    return (len(first) - 1) / rate_per_s / span_s if span_s > 0.0 else None


def all_at_once(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    """No arrival times and no pauses: what capacity is measured with."""
    return scale_times(records, 0.0)


def unchained(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    """The same requests, of which none waits for another: answers in prompts are texts of the same length.

    For capacity: a few conversations leave a cluster idle while they wait for themselves. Requests come all at once.
    """
    return [
        msgspec.structs.replace(
            record,
            prompt=tuple(
                TextPart(f"answer {part.index}", 0, records[part.index].num_output_tokens)
                if isinstance(part, AnswerPart)
                else part
                for part in record.prompt
            ),
            after=None,
            arrival_s=0.0,
        )
        for record in records
    ]


def with_other_texts(records: Sequence[TraceRecord], mark: str) -> list[TraceRecord]:
    """The same requests with other texts, which a server cannot have cached. Records with equal marks still share."""
    return [
        msgspec.structs.replace(
            record,
            prompt=tuple(
                part
                if isinstance(part, AnswerPart)
                else TextPart(f"{part.text_id}/{mark}", part.start, part.num_tokens)
                for part in record.prompt
            ),
        )
        for record in records
    ]


def num_starts(records: Sequence[TraceRecord]) -> int:
    """Records that follow no other."""
    return sum(record.after is None for record in records)


def take_first(records: Sequence[TraceRecord], count: int) -> list[TraceRecord]:
    """The first `count`: records follow earlier ones only, so nothing is missing."""
    return list(records[:count])


def _scale_part(part: TextPart | AnswerPart, factor: float) -> TextPart | AnswerPart:
    if isinstance(part, AnswerPart):
        return part
    start, end = round(part.start * factor), round((part.start + part.num_tokens) * factor)
    return TextPart(part.text_id, start, max(1, end - start))
