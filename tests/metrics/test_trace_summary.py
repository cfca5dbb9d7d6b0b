"""A trace can be read back and summed up, also one that was cut off."""

from __future__ import annotations

import pytest

from kvist.core.errors import ConfigError
from kvist.metrics.chrome_trace import write_chrome_trace
from kvist.metrics.step_record import OperationTime, StepRecord
from kvist.metrics.trace_reader import read_events, read_steps
from kvist.metrics.trace_summary import OUTSIDE, summarize_steps


def records() -> list[StepRecord]:
    timed = [OperationTime("linear", 0.004), OperationTime("attention", 0.001), OperationTime("linear", 0.002)]
    return [
        StepRecord(step_id=0, start_s=1.0, duration_s=0.1, num_decode_tokens=0, num_prefill_tokens=64, num_sampled=1),
        StepRecord(
            step_id=1, start_s=1.1, duration_s=0.01, num_decode_tokens=2, num_prefill_tokens=0, operations=timed,
            decode_context_tokens=130,
        ),
        StepRecord(step_id=2, start_s=1.15, duration_s=0.03, num_decode_tokens=2, num_prefill_tokens=0),
        StepRecord(step_id=3, start_s=1.2, duration_s=0.05, num_decode_tokens=1, num_prefill_tokens=8),
    ]  # fmt: skip


def lines() -> list[str]:
    text: list[str] = []
    write_chrome_trace(text.append, [([], record) for record in records()])
    return "".join(text).splitlines(keepends=True)


def test_steps_come_back_as_they_were_written() -> None:
    for (engine, step), record in zip(read_steps(read_events(lines())), records(), strict=True):
        assert engine == 1
        assert step.duration_s == pytest.approx(record.duration_s)
        assert (step.kind, step.decode_context_tokens) == (record.kind, record.decode_context_tokens)
        assert [operation.name for operation in step.operations] == [op.name for op in record.operations]


def test_time_divides_into_kinds_operations_and_idling() -> None:
    summary = summarize_steps(read_steps(read_events(lines())))
    assert summary.wall_s == pytest.approx(0.25)
    assert summary.idle_s == pytest.approx(0.25 - 0.19)
    prefill, decode, mixed = summary.kinds
    assert (prefill.num_steps, decode.num_steps, mixed.num_steps) == (1, 2, 1)
    assert decode.total_s == pytest.approx(0.04)
    assert (decode.num_decode_tokens, mixed.num_prefill_tokens) == (4, 8)
    assert list(decode.operations_s) == ["linear", "attention", OUTSIDE]
    assert decode.operations_s == pytest.approx({"linear": 0.006, "attention": 0.001, OUTSIDE: 0.003})
    assert (decode.num_timed, prefill.num_timed) == (1, 0)


def test_a_trace_that_was_cut_off_is_read_up_to_there() -> None:
    whole = "".join(lines())
    cut = whole[: whole.rindex('"step_id"')].splitlines(keepends=True)
    assert len(list(read_steps(read_events(iter(cut))))) == 3
    assert summarize_steps([]).kinds == ()


@pytest.mark.parametrize("text", ["", "{}", '[\n{"ph":"X"},\nnonsense\n{"ph":"X"}', "[\n5\n]"])
def test_what_is_no_trace_is_refused(text: str) -> None:
    if text:
        with pytest.raises(ConfigError, match="not a step trace"):
            list(read_events(iter(text.splitlines())))
    else:
        assert list(read_events(iter([]))) == []


def test_engines_are_told_apart_and_idle_each_for_itself() -> None:
    first, second, *_ = records()
    summary = summarize_steps([(1, first), (3, second)])
    assert summary.num_engines == 2
    assert summary.wall_s == pytest.approx(2 * 0.11)
    assert summary.idle_s == pytest.approx(2 * 0.11 - 0.11)


@pytest.mark.parametrize(
    "event",
    [
        '{"ph":"X","cat":"step"}',
        '{"ph":"X","cat":"operation","ts":1,"dur":1}',
        '{"ph":"X","cat":"step","name":"decode","ts":"x","dur":1}',
        '{"ph":"X","cat":"step","name":"decode","ts":NaN,"dur":1}',
        '{"ph":"X","cat":"step","name":"decode","ts":1,"dur":1,"args":5}',
        '{"ph":"X","cat":"step","name":"decode","ts":1,"dur":1,"args":{"step_id":0,"num_decode_tokens":"x"}}',
        '{"ph":"X","cat":"step","name":"decode","ts":1,"dur":1}',
        '{"ph":[]}',
    ],
)
def test_events_of_another_make_are_refused(event: str) -> None:
    with pytest.raises(ConfigError, match="not a step trace of"):
        list(read_steps(read_events(["[\n", event + ",\n", "]\n"])))
