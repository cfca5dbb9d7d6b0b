"""Traces say what the request events say, and viewers can draw them."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from tests.fakes.engine_world import World, request

from kvist.core.request_events import EventBatch, Preempted, Scheduled, StepSummary
from kvist.core.step_plan import StepPlan
from kvist.metrics.chrome_trace import ChromeTraceWriter, write_chrome_trace
from kvist.metrics.step_record import OperationTime, StepRecord, step_record

Event = dict[str, Any]


def turns(world: World, batches: list[EventBatch]) -> list[tuple[list[Any], StepRecord | None]]:
    plans = {plan.step_id: plan for plan in world.driver.plans}
    return [
        (batch.events, None if batch.step is None else step_record(plans[batch.step.step_id], batch))
        for batch in batches
    ]


def busy_world(depth: int = 1) -> tuple[World, list[EventBatch]]:
    """Long and short prompts, shared prefixes, preemptions, an abort."""
    world = World(num_blocks=40, budget=48, depth=depth, duration=lambda plan: 0.01 + 0.001 * plan.num_total_tokens)
    shared = list(range(1, 65))
    requests = [request(f"r{i}", 20 + 9 * (i % 5), 90 + i % 17, at=0.03 * i) for i in range(12)]
    requests += [request(f"s{i}", [*shared, 1000 + i], 40, at=0.2 + 0.05 * i) for i in range(6)]
    world.driver.abort_at(0.9, requests[3].request_id)
    return world, world.run(*requests)


def trace_of(world: World, batches: list[EventBatch]) -> list[Event]:
    text: list[str] = []
    write_chrome_trace(text.append, turns(world, batches), about={"model": 'a "quoted" one'})
    events: list[Event] = json.loads("".join(text))
    return events


def slices_by_track(events: list[Event]) -> dict[tuple[int, int], list[tuple[float, float, Event]]]:
    """(begin, end, event) of each track's slices, in order; arguments of both ends are one."""
    tracks: dict[tuple[int, int], list[tuple[float, float, Event]]] = defaultdict(list)
    open_slices: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        track = (event["pid"], event.get("tid", 0))
        if event["ph"] == "X":
            tracks[track].append((event["ts"], event["ts"] + event["dur"], event))
        elif event["ph"] == "B":
            open_slices[track].append(event)
        elif event["ph"] == "E":
            begun = open_slices[track].pop()
            assert begun["name"] == event["name"]
            merged = begun | {"args": begun.get("args", {}) | event.get("args", {})}
            tracks[track].append((begun["ts"], event["ts"], merged))
    assert not any(open_slices.values())
    return tracks


@pytest.mark.parametrize("depth", [1, 2])
def test_slices_of_a_track_nest_or_follow_each_other_and_times_never_go_back(depth: int) -> None:
    world, batches = busy_world(depth)
    assert depth == 2 or world.of_type(Preempted)
    events = trace_of(world, batches)
    last: dict[tuple[int, int, str], float] = defaultdict(float)
    for event in events:
        if event["ph"] != "M":
            track = (event["pid"], event.get("tid", 0), event["name"] if event["ph"] == "C" else "")
            assert event["ts"] >= last[track]
            last[track] = event["ts"]
            assert event.get("dur", 0) >= 0
    for slices in slices_by_track(events).values():
        for begin, end, _ in slices:
            for other_begin, other_end, _ in slices:
                apart = other_end <= begin + 1e-3 or other_begin >= end - 1e-3
                nested = (begin - 1e-3 <= other_begin and other_end <= end + 1e-3) or (
                    other_begin - 1e-3 <= begin and end <= other_end + 1e-3
                )
                assert apart or nested


@pytest.mark.parametrize("depth", [1, 2])
def test_a_trace_has_the_same_tokens_and_times_as_the_request_events(depth: int) -> None:
    world, batches = busy_world(depth)
    events = trace_of(world, batches)
    slices = slices_by_track(events)
    outputs, finished = world.outputs(), world.finished()
    cached = defaultdict(list)
    for event in world.of_type(Scheduled):
        cached[event.request_id].append(event.num_cached_tokens)
    names = set()
    for (pid, _), track in slices.items():
        if pid != 2:
            continue
        for begin, end, life in (entry for entry in track if entry[2].get("cat") == "request"):
            id_ = life["name"]
            names.add(id_)
            inside = [event for other, other_end, event in track if begin <= other and other_end <= end]
            decoded = sum(event["args"]["num_output_tokens"] for event in inside if event["name"] == "decode")
            assert decoded == len(outputs.get(id_, [])) == life["args"]["num_output_tokens"]
            hits = [
                event["args"]["num_cached_tokens"] for event in inside if "num_cached_tokens" in event.get("args", {})
            ]
            assert [hit for hit in hits if hit is not None][: len(cached[id_])] == cached[id_]
            assert life["args"]["reason"] == finished[id_].reason.value
            assert end == pytest.approx(finished[id_].time_s * 1e6, abs=0.002)
    assert names == set(finished)
    steps = [event for event in events if event.get("cat") == "step"]
    summaries = [batch.step for batch in batches if batch.step is not None]
    assert [step["args"]["step_id"] for step in steps] == [summary.step_id for summary in summaries]
    for step, summary in zip(steps, summaries, strict=True):
        assert step["args"].get("num_prefill_tokens", 0) == summary.num_prefill_tokens
        assert step["args"].get("num_decode_tokens", 0) == summary.num_decode_tokens
        assert step["ts"] + step["dur"] == pytest.approx(summary.time_s * 1e6, abs=0.002)
    assert sum(event["args"].get("num_cached_tokens", 0) for event in steps) == sum(map(sum, cached.values()))


def test_tracks_are_used_again_by_requests_that_come_later() -> None:
    world = World()
    batches = world.run(*(request(f"r{i}", 8, 4, at=100.0 * i) for i in range(20)))
    tids = {event["tid"] for event in trace_of(world, batches) if event["pid"] == 2 and event["ph"] != "M"}
    assert tids == {1}


def test_a_trace_cut_off_after_any_turn_is_an_array_without_its_end() -> None:
    world, batches = busy_world()
    text: list[str] = []
    writer = ChromeTraceWriter(text.append)
    for events, step in turns(world, batches):
        writer.add_turn(events, step)
        json.loads("".join(text[-1:]).removeprefix(",").join("[]") if len(text) > 1 else "".join(text) + "]")
    assert json.loads("".join(text) + "]")


def test_a_second_text_is_a_trace_of_its_own() -> None:
    world, batches = busy_world()
    texts: list[list[str]] = [[], []]
    writer = ChromeTraceWriter(texts[0].append)
    all_turns = turns(world, batches)
    half = len(all_turns) // 2
    for events, step in all_turns[:half]:
        writer.add_turn(events, step)
    writer.end()
    writer.restart(texts[1].append, batches[half - 1].time_s)
    for events, step in all_turns[half:]:
        writer.add_turn(events, step)
    writer.end()
    second = json.loads("".join(texts[1]))
    slices_by_track(second)  # each slice that ends in it begins in it
    assert json.loads("".join(texts[0]))
    lives = [event["name"] for event in second if event["ph"] == "B" and event.get("cat") == "request"]
    assert len(lives) == len(set(lives))


def test_a_trace_that_begins_late_shows_who_is_running_then() -> None:
    world, batches = busy_world()
    text: list[str] = []
    write_chrome_trace(text.append, turns(world, batches)[len(batches) // 2 :])
    assert slices_by_track(json.loads("".join(text)))


def test_timed_operations_stand_one_after_another_inside_their_step() -> None:
    step = StepRecord(
        step_id=7, start_s=1.0, duration_s=0.010, num_decode_tokens=1, num_prefill_tokens=0,
        operations=[OperationTime("linear", 0.004), OperationTime("attention", 0.003)],
    )  # fmt: skip
    text: list[str] = []
    write_chrome_trace(text.append, [([], step)])
    operations = [event for event in json.loads("".join(text)) if event.get("cat") == "operation"]
    assert [(event["name"], event["ts"], event["dur"]) for event in operations] == [
        ("linear", 1_000_000.0, 4000.0),
        ("attention", 1_004_000.0, 3000.0),
    ]


def test_refusals_are_marks_with_their_reason() -> None:
    text: list[str] = []
    writer = ChromeTraceWriter(text.append)
    writer.add_refusal("r1", 'the "queue" is full', 2.5)
    writer.end()
    (mark,) = [event for event in json.loads("".join(text)) if event["ph"] == "i"]
    assert mark["args"] == {"request_id": "r1", "reason": 'the "queue" is full'}
    assert mark["ts"] == 2_500_000.0


def test_a_step_record_counts_as_the_cost_model_does() -> None:
    plan = StepPlan(
        step_id=3, request_ids=["a", "b", "c", "d"], start_positions=[9, 4, 0, 100], num_scheduled_tokens=[1, 1, 3, 2],
        samples=[True, True, True, False], num_total_tokens=7,
    )  # fmt: skip
    summary = StepSummary(3, 5.0, 0.5, 7, 5, 2, 0, 4, 1, 10, 5, 20)
    record = step_record(plan, EventBatch(5.0, [Scheduled("c", 4.5, 16)], summary))
    assert record is not None
    assert (record.start_s, record.duration_s, record.kind, record.num_tokens) == (4.5, 0.5, "mixed", 7)
    assert (record.decode_context_tokens, record.prefill_pairs, record.prefill_context_tokens) == (15, 209, 105)
    assert (record.num_sequences, record.num_sampled, record.num_cached_tokens) == (4, 3, 16)
    assert (record.num_used_blocks, record.num_free_blocks, record.num_cached_blocks) == (5, 10, 5)
    assert [(part.request_id, part.num_cached_tokens) for part in record.parts] == [("c", 16), ("d", 0)]


def test_steps_of_one_track_follow_each_other() -> None:
    world, batches = busy_world(2)
    steps = [event for event in trace_of(world, batches) if event.get("cat") == "step"]
    assert all(step["ts"] + step["dur"] <= later["ts"] + 1e-3 for step, later in pairwise(steps))
