"""The trace of a running engine: what it holds, when it is written, and what can go wrong with its file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.clients import FORMS, events_of, new_request, running, simulated_config, tokens_in

from kvist import LLM, SamplingParams
from kvist.config.trace_config import TraceConfig
from kvist.core.errors import ConfigError, InvalidRequestError, QueueFullError
from kvist.runtime.trace_file import TraceFile, previous_path

Event = dict[str, Any]


def traced(path: Path, **options: Any) -> Any:
    scheduler = options.pop("scheduler", {})
    return replace(simulated_config(**scheduler), trace=TraceConfig(trace=str(path), **options))


def read(path: Path) -> list[Event]:
    """The trace as a reader sees it, who may come in the midst of a write: then it looks again."""
    for _ in range(100):
        with suppress(json.JSONDecodeError):
            events: list[Event] = json.loads(path.read_text(encoding="utf-8"))
            return events
        time.sleep(0.01)
    raise AssertionError(f"{path} is no JSON")


async def read_finished(path: Path, num_requests: int) -> list[Event]:
    """The trace once it shows so many finished requests: what is idle writes what it has."""
    while True:
        events = read(path)
        if sum(event["ph"] == "E" and "reason" in event.get("args", {}) for event in events) >= num_requests:
            return events
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("form", FORMS)
def test_a_running_engine_writes_the_tokens_that_its_clients_get(form: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    async def scenario() -> None:
        async with running(form, traced(path)) as client:
            requests = [new_request(f"r{i}", tuple(range(30 + i)), max_tokens=3 + i) for i in range(8)]
            answers = await asyncio.gather(*(events_of(client, request) for request in requests))
            events = await read_finished(path, len(requests))
            decoded: dict[int, int] = defaultdict(int)
            outputs: dict[str, int] = {}
            for event in events:
                if event["ph"] == "E" and event["name"] == "decode":
                    decoded[event["tid"]] += event["args"]["num_output_tokens"]
                elif event["ph"] == "E":
                    outputs[event["name"]] = event["args"]["num_output_tokens"]
                    assert decoded.pop(event["tid"]) == outputs[event["name"]]
            assert outputs == {f"r{i}": len(tokens_in(answer)) for i, answer in enumerate(answers)}
            steps = [event["args"] for event in events if event.get("cat") == "step"]
            assert sum(step.get("num_decode_tokens", 0) for step in steps) == sum(2 + i for i in range(8))

    asyncio.run(scenario())


@pytest.mark.parametrize("form", FORMS)
def test_on_demand_only_what_happens_between_start_and_stop_is_written(form: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    async def scenario() -> None:
        async with running(form, traced(path, trace_on_demand=True)) as client:
            await events_of(client, new_request("before"))
            assert not path.exists()
            assert await client.start_profile() == str(path)
            assert await client.start_profile() == str(path)  # it goes on
            await events_of(client, new_request("during"))
            assert await client.stop_profile() == str(path)
            await events_of(client, new_request("after"))
            with pytest.raises(InvalidRequestError, match="no trace is being written"):
                await client.stop_profile()
            names = {event["name"] for event in read(path)}
            assert "during" in names
            assert not names & {"before", "after"}
            await client.start_profile()
            assert previous_path(path).exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("form", FORMS)
def test_without_a_file_the_answer_says_how_to_name_one(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            with pytest.raises(InvalidRequestError, match="--trace FILE"):
                await client.start_profile()

    asyncio.run(scenario())


def test_a_killed_engine_leaves_a_whole_trace_which_the_next_one_keeps(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    async def scenario() -> None:
        async with running("process", traced(path)) as client:
            await events_of(client, new_request("done"))
            await read_finished(path, 1)
            running_request = asyncio.create_task(events_of(client, new_request("cut off", max_tokens=900)))
            while not any(event["name"] == "cut off" for event in read(path)):
                await asyncio.sleep(0.01)
            pid = client._link.pid
            os.kill(pid, signal.SIGKILL)
            await running_request
            names = {event["name"] for event in read(path)}
            assert {"done", "cut off"} <= names
            while not previous_path(path).exists() or not path.exists() or not path.read_bytes():
                await asyncio.sleep(0.01)  # until it runs again
            assert {event["name"] for event in read(previous_path(path))} >= {"done", "cut off"}

    asyncio.run(scenario())


def test_a_trace_and_its_past_stay_within_their_bytes_and_keep_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    max_bytes = 1 << 16

    async def scenario() -> None:
        async with running("thread", traced(path, trace_max_bytes=max_bytes)) as client:
            for i in range(250):
                await events_of(client, new_request(f"r{i}", max_tokens=2))

    asyncio.run(scenario())
    files = (previous_path(path), path)
    assert max_bytes / 2 < sum(file.stat().st_size for file in files) < max_bytes * 1.5
    # The file may have been turned over after the last event: the end is then in the one before.
    assert any(event["name"] == "r249" for file in files for event in read(file))
    assert read(previous_path(path))


def test_refusals_are_in_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    async def scenario() -> None:
        config = traced(path, scheduler={"max_num_queued_reqs": 1, "max_num_seqs": 1})
        async with running("thread", config) as client:
            requests = [new_request(f"r{i}", max_tokens=50) for i in range(6)]
            answers = await asyncio.gather(*(events_of(client, r) for r in requests), return_exceptions=True)
            assert any(isinstance(answer, QueueFullError) for answer in answers)

    asyncio.run(scenario())
    assert any(event["name"] == "refused" and "reason" in event["args"] for event in read(path))


def test_a_disk_that_takes_no_more_ends_the_trace_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    async def scenario() -> None:
        async with running("thread", traced(tmp_path / "trace.json")) as client:
            monkeypatch.setattr(os, "pwrite", fail)
            for i in range(3):
                assert tokens_in(await events_of(client, new_request(f"r{i}")))
                await asyncio.sleep(0.02)

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["no-such-folder/trace.json", "."])
def test_a_file_that_cannot_be_made_is_said_before_serving(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trace"):
        TraceFile(tmp_path / name)


def test_the_array_is_closed_after_every_flush(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.json")
    file.write('[\n{"a":1}')
    file.flush()
    assert json.loads((tmp_path / "t.json").read_text()) == [{"a": 1}]
    file.write(',\n{"b":2}')
    assert json.loads((tmp_path / "t.json").read_text()) == [{"a": 1}]
    file.close()
    assert json.loads((tmp_path / "t.json").read_text()) == [{"a": 1}, {"b": 2}]


def test_a_write_that_the_disk_cuts_short_leaves_the_events_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, room = tmp_path / "t.json", os.pwrite, 30

    def write_until_full(descriptor: int, data: bytes, position: int) -> int:
        num_free = room - position
        if num_free <= 0:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:num_free], position)

    file = TraceFile(path)
    file.write('[\n{"a":1}')
    file.flush()
    monkeypatch.setattr(os, "pwrite", write_until_full)
    file.write(',\n{"b":"' + "x" * 100 + '"}')
    with pytest.raises(OSError, match="No space"):
        file.flush()
    file.close()
    assert json.loads(path.read_text()) == [{"a": 1}]


@pytest.mark.parametrize("every", [0, 1, 4])
def test_kernels_of_every_nth_step_of_a_kind_are_timed(every: int, tiny_model: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    options = {"max_num_batched_tokens": 64, "num_blocks": 64, "max_model_len": 256}
    with LLM(str(tiny_model()), trace=str(path), trace_operations_every=every, **options) as llm:
        llm.generate("x" * 150, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    events = read(path)
    steps = [event for event in events if event.get("cat") == "step"]
    operations = [event for event in events if event.get("cat") == "operation"]
    timed = defaultdict(list)
    for operation in operations:
        (step,) = [s for s in steps if s["ts"] - 1e-3 <= operation["ts"] < s["ts"] + s["dur"] + 1e-3][:1]
        assert operation["ts"] + operation["dur"] <= step["ts"] + step["dur"] + 1e-3
        timed[step["args"]["step_id"]].append(operation["name"])
    decodes = [step["args"]["step_id"] for step in steps if step["name"] == "decode"]
    assert [id_ for id_ in decodes if id_ in timed] == (decodes[::every] if every else [])
    assert bool(timed) == bool(every)
    assert all("attention" in " ".join(names) for names in timed.values())
