"""Requests go out when they are due, answers are stamped between their writing and the next, failures stay apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.bench.oracle import client_run, follow_up, oracle_server, record, until

from kvist.bench.client_run import CallState, FinishedRun
from kvist.bench.prompt_writer import PromptForm
from kvist.bench.run_requests import served_requests
from kvist.metrics.benchmark_result import benchmark_result
from kvist.metrics.served_request import Outcome


def test_each_chunk_is_stamped_after_it_was_written_and_before_the_next() -> None:
    """The oracle writes a chunk only when told to, and is told when the one before has been read."""

    async def scenario() -> None:
        async with oracle_server(held=True, tokens_per_chunk=2) as (oracle, server):
            run = client_run(server, [record(0, num_output_tokens=10), record(1, num_output_tokens=10)])
            running = asyncio.create_task(run.run())
            for number in range(1, 6):
                await until(lambda: len(oracle.held) == 2)
                oracle.release()
                await until(lambda n=number: all(len(c.reader.samples[0].pieces) == n for c in run._calls.values()))
            finished = await running
            assert len(oracle.written) == len(finished.calls) == 2
            written_by_stamp = {written.chunks[0][0]: written.chunks for written in oracle.written}
            for call in finished.calls:
                pieces = call.reader.samples[0].pieces
                chunks = written_by_stamp[int(pieces[0][1])]
                assert [int(text) for _, text, _ in pieces] == [ns for ns, _ in chunks]
                assert [count for _, _, count in pieces] == [count for _, count in chunks] == [2] * 5
                moments = [
                    call.sent_s,
                    *(t for (ns, _), (r, _, _) in zip(chunks, pieces, strict=True) for t in (ns / 1e9, r)),
                ]
                assert moments == sorted(moments)
                assert call.ended_s >= moments[-1]

    asyncio.run(scenario())


def test_an_open_loop_sends_however_slow_the_answers_are() -> None:
    async def scenario() -> None:
        async with oracle_server(held=True) as (oracle, server):
            running = asyncio.create_task(
                client_run(server, [record(i, 0.001 * i, num_output_tokens=1) for i in range(30)]).run()
            )
            await until(lambda: len(oracle.held) == 30)  # nothing has been answered yet
            oracle.release()
            finished = await running
            dues = [call.due_s for call in finished.calls]
            assert dues == sorted(dues)
            assert all(call.sent_s >= call.due_s for call in finished.calls)

    asyncio.run(scenario())


def test_a_closed_loop_keeps_no_more_open_than_it_may() -> None:
    async def scenario() -> None:
        async with oracle_server(ttft_s=0.005) as (oracle, server):
            finished = await client_run(server, [record(i) for i in range(20)], max_concurrency=3).run()
            assert oracle.max_open == 3
            assert [call.state for call in finished.calls] == [CallState.COMPLETED] * 20

    asyncio.run(scenario())


@pytest.mark.parametrize("form", list(PromptForm))
def test_a_conversation_goes_on_with_the_models_own_answer(form: PromptForm) -> None:
    async def scenario() -> None:
        async with oracle_server() as (oracle, server):
            fields = {"return_token_ids": True}
            records = [record(0), follow_up(1, 0), follow_up(2, 1), follow_up(3, 0)]
            finished = await client_run(server, records, form, fields).run()
            assert [call.state for call in finished.calls] == [CallState.COMPLETED] * 4
            bodies = {len(str(written.body)): written.body for written in oracle.written}
            answer = finished.calls[0].answer
            last = bodies[max(bodies)]
            if form is PromptForm.MESSAGES:
                assert [message["role"] for message in last["messages"]][:3] == ["user", "assistant", "user"]
                assert last["messages"][1]["content"] == finished.calls[1].answer.text or (
                    last["messages"][1]["content"] == answer.text
                )
            elif form is PromptForm.TEXT:
                assert finished.calls[1].answer.text in last["prompt"]
            else:
                assert list(answer.token_ids) == [7] * 4
                assert len(last["prompt"]) == 12 + 4 + 5
            starts = {call.record.index: call for call in finished.calls}
            for call in finished.calls:
                if call.record.after is not None:
                    assert call.sent_s >= starts[call.record.after].ended_s

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("failure", "outcome", "message"),
    [
        ("status_429", Outcome.REJECTED, "status 429"),
        ("status_500", Outcome.FAILED, "status 500"),
        ("disconnect", Outcome.FAILED, "closed"),
        ("error_event", Outcome.FAILED, "as the schedule says"),
        ("no_end", Outcome.FAILED, "ended before"),
        ("stall", Outcome.FAILED, "no answer within"),
    ],
)
def test_a_failure_is_told_and_harms_no_other(failure: str, outcome: Outcome, message: str) -> None:
    async def scenario() -> None:
        async with oracle_server() as (_, server):
            timeout_s = 0.3 if failure == "stall" else 100.0
            after = 0 if failure.startswith("status") else 1
            schedule = {"oracle": {"failure": failure, "after_chunks": after}}
            good, bad = [record(i) for i in range(3)], [record(0), follow_up(1, 0)]
            fine = await client_run(server, good).run()
            broken = await client_run(server, bad, fields=schedule, timeout_s=timeout_s).run()
            again = await client_run(server, good).run()
            requests = served(broken, bad)
            assert requests[0].outcome is outcome
            assert message in requests[0].error
            assert requests[1].outcome is Outcome.FAILED
            assert "continues a request that failed" in requests[1].error
            for run in (fine, again):
                assert [call.state for call in run.calls] == [CallState.COMPLETED] * 3

    asyncio.run(scenario())


def served(run: FinishedRun, records: list[Any]) -> list[Any]:
    return served_requests(run, records, lambda text: len(text))


def test_nobody_listening_is_a_failure_of_each_request() -> None:
    async def scenario() -> None:
        async with oracle_server() as (_, server):
            pass
        with pytest.raises(OSError, match=r"."):
            await client_run(server, [record(0)]).run()

    asyncio.run(scenario())


def test_a_stopped_run_keeps_what_came_until_then() -> None:
    async def scenario() -> None:
        async with oracle_server(held=True) as (oracle, server):
            records = [record(0, num_output_tokens=1), record(1, num_output_tokens=2), record(2, 3600.0)]
            run = client_run(server, records)
            running = asyncio.create_task(run.run())
            await until(lambda: len(oracle.held) == 2)
            oracle.release()
            await until(lambda: run._calls[0].state is CallState.COMPLETED and oracle.held)
            run.stop()
            finished = await running
            assert finished.was_stopped
            requests = served(finished, records)
            assert [request.outcome for request in requests] == [Outcome.COMPLETED, Outcome.UNFINISHED]
            result = benchmark_result(requests, duration_s=finished.duration_s, setup={})
            assert (result["completed"], result["unfinished"], result["total_output_tokens"]) == (1, 1, 1)
            await until(lambda: any(written.is_cut for written in oracle.written))

    asyncio.run(scenario())


def test_several_samples_come_with_one_request() -> None:
    async def scenario() -> None:
        async with oracle_server() as (oracle, server):
            records = [record(0, n=3)]
            finished = await client_run(server, records, fields={"stream_options": {"include_usage": True}}).run()
            (request,) = served(finished, records)
            assert oracle.written[0].body["n"] == 3
            assert [sum(count for _, count in sample) for sample in request.samples] == [4, 4, 4]
            assert request.num_output_tokens == 12
            assert len(request.tpots_s()) == 3

    asyncio.run(scenario())
