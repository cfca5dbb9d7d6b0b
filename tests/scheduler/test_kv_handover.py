"""KV from elsewhere: reserved, brought, computed on; and blocks held for a reader after the end. In checking mode."""

from __future__ import annotations

import pytest
from tests.fakes.engine_world import BLOCK_SIZE, World, request

from kvist.core.errors import InvalidRequestError
from kvist.core.request import PUBLIC_DOMAIN, FinishReason, NewRequest, RequestId, unpack_token_ids
from kvist.core.request_events import Scheduled
from kvist.kvcache.connector import KVReceive


def receives(world: World) -> list[KVReceive]:
    """Plan at the present time, as a driver does, and see what KV is asked for."""
    assert world.core.begin(0.0) is None
    return world.scheduler.kv_handover.take_receives()


def bring(world: World, receive: KVReceive, new: NewRequest, num_tokens: int | None = None) -> None:
    """The KV arrives: put its content into the blocks and say so."""
    end = receive.end_token if num_tokens is None else num_tokens
    tokens = unpack_token_ids(new.prompt_token_ids)[:end].tolist()
    world.executor.fill(receive.block_ids[: -(-end // BLOCK_SIZE)], tokens)
    world.scheduler.kv_handover.arrive(new.request_id, end)


def test_a_handed_over_prompt_is_not_computed_again() -> None:
    world = World()
    new = request("a", 41, max_tokens=4, num_incoming_tokens=40)
    world.core.add_request(new, 0.0)
    (receive,) = receives(world)
    assert (receive.first_token, receive.end_token, len(receive.block_ids)) == (0, 40, 3)
    bring(world, receive, new)
    world.run(request("later", 4, max_tokens=1, at=0.5))
    assert world.step_tokens()[0]["a"] == 1
    assert world.cached()["a"] == 40
    assert world.reasons()["a"] is FinishReason.LENGTH
    world.assert_at_rest()


def test_outputs_do_not_depend_on_where_the_kv_came_from() -> None:
    alone, moved = World(), World()
    alone.run(request("a", 50, max_tokens=6))
    new = request("a", 50, max_tokens=6, num_incoming_tokens=32)
    moved.core.add_request(new, 0.0)
    (receive,) = receives(moved)
    bring(moved, receive, new)
    moved.run(request("later", 4, max_tokens=1, at=0.5))
    assert moved.outputs()["a"] == alone.outputs()["a"]
    assert moved.step_tokens()[0]["a"] == 18


def test_only_what_is_missing_is_asked_for() -> None:
    world = World()
    prompt = list(range(80))
    world.run(request("first", prompt, max_tokens=1))
    new = request("second", [*prompt, 1, 2, 3], max_tokens=2, num_incoming_tokens=82, at=9.0)
    world.core.add_request(new, 9.0)
    (receive,) = receives(world)
    assert receive.first_token == 80


def test_a_transfer_that_fails_leaves_the_prompt_to_be_computed() -> None:
    world = World()
    new = request("a", 50, max_tokens=3, num_incoming_tokens=49)
    world.core.add_request(new, 0.0)
    (receive,) = receives(world)
    world.scheduler.kv_handover.arrive(new.request_id, receive.first_token)
    world.run(request("later", 4, max_tokens=1, at=0.5))
    assert world.step_tokens()[0]["a"] == 50
    assert world.reasons()["a"] is FinishReason.LENGTH


def test_kv_is_not_asked_for_before_there_is_memory_and_then_in_order_of_arrival() -> None:
    world = World(num_blocks=12)
    busy = request("busy", 140, max_tokens=20)
    world.run(busy, until_s=2.0)
    for name in ("a", "b"):
        world.core.add_request(request(name, 60, max_tokens=2, num_incoming_tokens=59), 2.0)
    assert receives(world) == []
    world.driver.run(until_s=100.0)
    assert [receive.request_id for receive in world.scheduler.kv_handover.take_receives()] == ["a", "b"]


@pytest.mark.parametrize("stage", ["asked", "receiving", "arrived"])
def test_an_abort_frees_everything_at_every_stage(stage: str) -> None:
    world = World()
    new = request("a", 40, max_tokens=3, num_incoming_tokens=39)
    world.core.add_request(new, 0.0)
    if stage != "asked":
        (receive,) = receives(world)
        if stage == "arrived":
            bring(world, receive, new)
    world.core.abort_request(new.request_id, 0.0)
    world.assert_at_rest()
    assert world.core.begin(0.0) is None


def test_a_lease_holds_the_blocks_of_an_ended_request_until_it_is_released() -> None:
    world = World(enable_prefix_caching=False)
    world.run(request("a", 40, max_tokens=1, leases_kv=True))
    status = world.scheduler.status()
    assert status.num_total_blocks - status.num_free_blocks == 3
    world.scheduler.check_invariants()
    assert world.scheduler.kv_handover.release_lease(RequestId("a"))
    assert not world.scheduler.kv_handover.release_lease(RequestId("a"))
    world.assert_at_rest()


def test_a_lease_whose_reader_never_comes_expires() -> None:
    world = World()
    world.run(request("a", 40, max_tokens=1, leases_kv=True))
    world.run(request("b", 4, max_tokens=1, at=10_000.0))
    world.assert_at_rest()


def test_an_aborted_request_leaves_no_lease() -> None:
    world = World()
    world.driver.submit([request("a", 40, max_tokens=50, leases_kv=True)])
    world.driver.abort_at(3.0, RequestId("a"))
    world.run()
    world.assert_at_rest()


def test_a_cached_prefix_can_be_held_for_a_reader_and_is_not_evicted_meanwhile() -> None:
    world = World(num_blocks=8)
    prompt = list(range(64))
    world.run(request("a", prompt, max_tokens=1))
    packed = request("x", prompt).prompt_token_ids
    assert world.scheduler.kv_handover.lease_prefix(RequestId("read"), PUBLIC_DOMAIN, packed, 5.0) == 64
    world.run(request("b", 40, max_tokens=1, at=6.0))
    world.run(request("c", [*prompt, 5], max_tokens=1, at=20.0))
    assert world.cached()["c"] == 64
    world.scheduler.kv_handover.release_lease(RequestId("read"))
    world.assert_at_rest()


def test_more_incoming_tokens_than_the_prompt_has_are_refused() -> None:
    world = World()
    with pytest.raises(InvalidRequestError, match="num_incoming_tokens"):
        world.core.add_request(request("a", 10, num_incoming_tokens=10), 0.0)


def test_who_shares_a_prefix_waits_for_the_one_that_receives_it() -> None:
    world = World()
    prompt = list(range(64))
    new = request("a", [*prompt, 7], max_tokens=2, num_incoming_tokens=64)
    world.core.add_request(new, 0.0)
    (receive,) = receives(world)
    world.core.add_request(request("b", [*prompt, 8], max_tokens=2), 0.0)
    assert world.core.begin(0.0) is None
    bring(world, receive, new)
    world.run(request("later", 4, max_tokens=1, at=0.5))
    assert [event.num_cached_tokens for event in world.of_type(Scheduled) if event.request_id == "b"] == [64]
