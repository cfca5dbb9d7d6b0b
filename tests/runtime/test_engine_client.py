"""Both forms of the engine client keep the same contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest
from tests.fakes.simulated_engine import CRASHING_TOKEN, FAILING_TOKEN
from tests.runtime.clients import (
    FORMS,
    LONG,
    events_of,
    finish_of,
    is_at_rest,
    make_client,
    named,
    new_request,
    running,
    simulated_config,
    tokens_in,
)

from kvist.core.errors import (
    CheckpointError,
    EngineUnavailableError,
    InvalidRequestError,
    QueueFullError,
    RequestTooLongError,
)
from kvist.core.request import FinishReason, RequestId
from kvist.core.request_events import EventBatch, Finished, Queued, Scheduled
from kvist.runtime.supervised_client import SupervisedEngineClient

pytestmark = pytest.mark.parametrize("form", FORMS)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a state that comes with a later turn of the engine."""
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0.005)


async def rest(client: SupervisedEngineClient) -> None:
    await eventually(lambda: is_at_rest(client.status()))


def test_a_request_is_queued_scheduled_sampled_and_finished(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            events = await events_of(client, new_request("a"))
            assert isinstance(events[0], Queued)
            assert isinstance(events[1], Scheduled)
            assert len(tokens_in(events)) == 8
            assert finish_of(events).reason is FinishReason.LENGTH
            await rest(client)

    asyncio.run(scenario())


def test_many_requests_at_once_get_what_they_get_alone(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            alone = [tokens_in(await events_of(client, new_request(f"alone-{i}", seed=i))) for i in range(6)]
            together = await asyncio.gather(
                *(events_of(client, new_request(f"together-{i}", seed=i)) for i in range(6))
            )
            assert [tokens_in(events) for events in together] == alone

    asyncio.run(scenario())


def test_closing_the_iterator_at_any_event_frees_all_blocks(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            for num_taken in range(6):
                async with aclosing(client.submit(new_request(f"r{num_taken}", max_tokens=LONG))) as stream:
                    for _ in range(num_taken):
                        await anext(stream)
            await rest(client)

    asyncio.run(scenario())


def test_a_cancelled_consumer_aborts_its_request(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            task = asyncio.create_task(events_of(client, new_request("a", max_tokens=LONG)))
            await eventually(lambda: client.status().num_running == 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await rest(client)

    asyncio.run(scenario())


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.STOP])
def test_abort_by_id_ends_the_stream_with_the_reason_given(form: str, reason: FinishReason) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            task = asyncio.create_task(events_of(client, new_request("a", max_tokens=LONG)))
            await eventually(lambda: client.status().num_running == 1)
            await client.abort(RequestId("a"), reason=reason)
            await client.abort(RequestId("unknown"))
            assert finish_of(await task).reason is reason
            await rest(client)

    asyncio.run(scenario())


def test_a_request_that_can_never_fit_is_refused_with_its_own_error(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            with pytest.raises(RequestTooLongError, match="9000"):
                await events_of(client, new_request("a", prompt=[1] * 9000))
            with pytest.raises(InvalidRequestError):
                await events_of(client, new_request("b", prompt=[]))
            assert finish_of(await events_of(client, new_request("c"))).reason is FinishReason.LENGTH

    asyncio.run(scenario())


def test_a_full_queue_refuses_with_a_time_to_retry(form: str) -> None:
    async def scenario() -> None:
        async with running(form, simulated_config(max_num_seqs=1, max_num_queued_reqs=2)) as client:
            calls = [events_of(client, new_request(f"r{i}", max_tokens=300)) for i in range(8)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            refused = [result for result in results if isinstance(result, QueueFullError)]
            assert refused
            assert all(error.retry_after_s > 0 for error in refused)
            assert len(refused) + sum(isinstance(result, list) for result in results) == 8

    asyncio.run(scenario())


def test_an_id_in_use_is_refused(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client, aclosing(client.submit(new_request("a", max_tokens=LONG))) as stream:
            await anext(stream)
            with pytest.raises(InvalidRequestError, match="in use"):
                await events_of(client, new_request("a"))

    asyncio.run(scenario())


def test_a_failing_step_fails_its_request_and_nothing_else(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            failed = finish_of(await events_of(client, new_request("bad", prompt=[FAILING_TOKEN])))
            assert failed.reason is FinishReason.ERROR
            assert "made to fail" in (failed.error or "")
            assert finish_of(await events_of(client, new_request("good"))).reason is FinishReason.LENGTH
            assert client.status().num_restarts == 0
            await rest(client)

    asyncio.run(scenario())


def test_a_crash_of_the_step_loop_fails_all_and_brings_up_a_new_engine(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            other = asyncio.create_task(events_of(client, new_request("other", max_tokens=LONG)))
            await eventually(lambda: client.status().num_running == 1)
            crashed = finish_of(await events_of(client, new_request("bad", prompt=[CRASHING_TOKEN])))
            assert crashed.reason is FinishReason.ERROR
            assert "a bug in the scheduler" in (crashed.error or "")
            lost = finish_of(await other)
            assert lost.reason is FinishReason.ERROR
            assert lost.num_prompt_tokens == 40
            await eventually(lambda: client.status().state == "ready")
            assert client.status().num_restarts == 1
            assert finish_of(await events_of(client, new_request("good"))).reason is FinishReason.LENGTH

    asyncio.run(scenario())


def test_a_slow_consumer_gets_the_events_that_waited_as_one_list(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            is_finished = asyncio.Event()

            def look(batch: EventBatch) -> None:
                if any(isinstance(event, Finished) for event in batch.events):
                    is_finished.set()

            client.add_listener(look)
            async with aclosing(client.submit(new_request("slow", max_tokens=1000))) as stream:
                taken = await anext(stream)
                await is_finished.wait()
                waited = await anext(stream)
            assert len(tokens_in(taken)) + len(tokens_in(waited)) == 1000

    asyncio.run(scenario())


def test_listeners_see_every_batch_and_its_step(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            batches: list[EventBatch] = []
            client.add_listener(batches.append)
            events = await events_of(client, new_request("a"))
            assert [event for batch in batches for event in batch.events] == events
            steps = [batch.step for batch in batches if batch.step is not None]
            assert sum(step.num_scheduled_tokens for step in steps) == 40 + 7
            assert all(step.step_time_s > 0 for step in steps)

    asyncio.run(scenario())


def test_reset_prefix_cache_makes_the_next_request_compute_its_prompt(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            await events_of(client, new_request("cold"))
            warm = finish_of(await events_of(client, new_request("warm")))
            assert warm.num_cached_tokens >= 32
            assert await client.reset_prefix_cache()
            again = finish_of(await events_of(client, new_request("again")))
            assert again.num_cached_tokens == 0

    asyncio.run(scenario())


def test_an_idle_engine_keeps_giving_signs_of_life(form: str) -> None:
    async def scenario() -> None:
        async with running(form) as client:
            first_s = client._last_turn_s
            await eventually(lambda: client._last_turn_s > first_s)
            await eventually(lambda: client.status().heartbeat_age_s < 5.0)

    asyncio.run(scenario())


def test_close_lets_running_requests_finish_and_refuses_new_ones(form: str) -> None:
    async def scenario() -> None:
        client = make_client(form, simulated_config())
        await client.start()
        task = asyncio.create_task(events_of(client, new_request("a", max_tokens=1500)))
        await eventually(lambda: client.status().num_running == 1)
        closing = asyncio.create_task(client.close(drain_s=100.0))
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailableError, match="draining"):
            await events_of(client, new_request("late"))
        assert finish_of(await task).reason is FinishReason.LENGTH
        await closing
        with pytest.raises(EngineUnavailableError):
            await events_of(client, new_request("later"))

    asyncio.run(scenario())


def test_close_aborts_what_does_not_finish_in_time(form: str) -> None:
    async def scenario() -> None:
        client = make_client(form, simulated_config())
        await client.start()
        task = asyncio.create_task(events_of(client, new_request("a", max_tokens=LONG)))
        await eventually(lambda: client.status().num_running == 1)
        await client.close(drain_s=0.01)
        assert finish_of(await task).reason is FinishReason.ABORT

    asyncio.run(scenario())


def test_start_raises_what_kept_the_engine_from_starting(form: str) -> None:
    async def scenario() -> None:
        client = make_client(form, named(simulated_config(), "broken"))
        with pytest.raises(CheckpointError, match="the file is damaged"):
            await client.start()
        await client.close(drain_s=0.0)

    asyncio.run(scenario())


def test_submit_before_start_says_so(form: str) -> None:
    async def scenario() -> None:
        client = make_client(form, simulated_config())
        with pytest.raises(EngineUnavailableError, match="not started"):
            await events_of(client, new_request("a"))

    asyncio.run(scenario())
