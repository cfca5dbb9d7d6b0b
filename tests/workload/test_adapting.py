"""Loads fitted to other models and machines keep what their requests share."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvist.core.errors import ConfigError
from kvist.workload.adapting import all_at_once, scale_lengths, scale_times, take_first, with_arrivals
from kvist.workload.arrival_process import RampUp
from kvist.workload.load_file import frozen_loads
from kvist.workload.random_stream import RandomStream
from kvist.workload.text_source import TextSource
from kvist.workload.trace_record import TextPart, TraceRecord, count_prompt_tokens


def blocks(*ids: int, last: int = 512) -> tuple[TextPart, ...]:
    return tuple(TextPart(f"t/{i}", 0, 512 if i != ids[-1] else last) for i in ids)


def test_shorter_prompts_still_share_their_beginnings() -> None:
    records = [
        TraceRecord(index=0, arrival_s=0.0, prompt=blocks(0, 1, 2, last=100), num_output_tokens=50),
        TraceRecord(index=1, arrival_s=0.0, prompt=blocks(0, 1, 3), num_output_tokens=1),
    ]
    scaled = scale_lengths(records, 0.25)
    assert count_prompt_tokens(scaled) == [281, 384]
    assert [record.num_output_tokens for record in scaled] == [12, 1]
    source = TextSource(lambda text: list(text.encode()), ["One sentence.", "Another one."])
    first, second = (source.prompt(record, lambda index: []) for record in scaled)
    assert first[:256] == second[:256]
    assert first[256:] != second[256 : len(first)]


def test_a_cut_text_has_no_gap_and_no_overlap() -> None:
    parts = [TextPart("a", 0, 5), TextPart("a", 5, 5), TextPart("a", 10, 5)]
    record = TraceRecord(index=0, arrival_s=0, prompt=tuple(parts), num_output_tokens=1)
    scaled = scale_lengths([record], 0.5)[0].prompt
    assert [(a.start + a.num_tokens, b.start) for a, b in pairwise(scaled)] == [(2, 2), (5, 5)]


def test_times_and_pauses_are_scaled_and_replaced_apart() -> None:
    records = frozen_loads().load("chat_multi_turn").records(capacity_per_s=2.0)
    assert scale_times(records, 0.5)[9].arrival_s == records[9].arrival_s / 2
    assert all(record.arrival_s == 0 for record in all_at_once(records))
    given = [float(i) for i in range(24)]
    moved = with_arrivals(records, given)
    assert [record.arrival_s for record in moved if record.after is None] == given
    assert moved[1] == records[1]
    with pytest.raises(ConfigError, match="24 requests"):
        with_arrivals(records, [1.0])
    assert [record.index for record in take_first(records, 10)] == list(range(10))


@pytest.mark.parametrize("exponential", [False, True])
def test_a_ramp_comes_faster_and_faster(exponential: bool) -> None:
    times = RampUp(1.0, 100.0, exponential).times(RandomStream(1, "a"), 2000)
    assert times == sorted(times)
    early, late = times[200] - times[0], times[-1] - times[-201]
    assert early > 5 * late
