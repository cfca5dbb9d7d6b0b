"""Keeps a load within a model's context; and makes the requests that a server is measured with beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvist.core.errors import ConfigError
from kvist.workload.trace_record import TextPart, TraceRecord, count_prompt_tokens


def check_lengths(records: Sequence[TraceRecord], max_model_len: int | None) -> None:
    """Raise ConfigError, with advice, if a request does not fit into the context. None: nobody knows its size."""
    too_long = _too_long(records, max_model_len)
    if too_long and max_model_len is not None:
        longest = max(too_long.values())
        factor = math.floor(98 * max_model_len / longest) / 100  # a little less, for lengths are rounded
        raise ConfigError(
            f"{len(too_long)} of {len(records)} requests exceed the model's context of {max_model_len} tokens, "
            f"the longest with {longest}. Give --scale-lengths {factor:g}, or --skip-too-long to leave them out."
        )


def without_too_long(records: list[TraceRecord], max_model_len: int | None) -> list[TraceRecord]:
    """The requests that fit, numbered anew."""
    too_long = _too_long(records, max_model_len)
    if not too_long:
        return records
    if any(record.after is not None for record in records):
        raise ConfigError("--skip-too-long is for loads of single requests; give --scale-lengths")
    kept = [record for record in records if record.index not in too_long]
    return [msgspec.structs.replace(record, index=index) for index, record in enumerate(kept)]


def separate_requests(name: str, lengths: Sequence[int], num_output_tokens: int, seed: int) -> list[TraceRecord]:
    """Requests that share nothing, all due at the start."""
    return [
        TraceRecord(
            index=index,
            arrival_s=0.0,
            prompt=(TextPart(f"{name}/{seed}/{index}", 0, length),),
            num_output_tokens=num_output_tokens,
        )
        for index, length in enumerate(lengths)
    ]


def _too_long(records: Sequence[TraceRecord], max_model_len: int | None) -> dict[int, int]:
    """Length by index of the requests that do not fit."""
    if max_model_len is None:
        return {}
    totals = [
        length + record.num_output_tokens for length, record in zip(count_prompt_tokens(records), records, strict=True)
    ]
    return {index: total for index, total in enumerate(totals) if total > max_model_len}
