"""Which decodes move to another replica: where from, where to, and never without a gain."""

from __future__ import annotations

from tests.fakes.cluster_world import cluster_request, router

from kvist.cluster.decode_migration import FULL_SHARE, ROOM_SHARE, Migration
from kvist.cluster.global_scheduler import MAX_MOVES, GlobalScheduler, _Placed
from kvist.core.request import RequestId


def decode(scheduler: GlobalScheduler, name: str, replica: int, *, num_tokens: int = 400, at_s: float = 0.0) -> None:
    """A request that decodes there, as if its prompt had been computed at `at_s`."""
    request = cluster_request(name, max(num_tokens - 64, 1))
    scheduler._placed[request.request_id] = _Placed(request, replica, replica, has_first_token=True)
    scheduler.state.replicas[replica].add_decode(request.request_id, num_tokens, at_s)
    scheduler.state.replicas[replica].start_decode(request.request_id, at_s)


def drain(scheduler: GlobalScheduler, replica: int) -> None:
    """It takes prompts only, and has some queued that the decodes there would share steps with."""
    scheduler.state.replicas[replica].decode_weight = 0.0
    scheduler.state.replicas[replica].add_prefill(RequestId("prompts"), 3.0, 0.0)


def test_nothing_moves_where_nobody_is_drained_or_short() -> None:
    scheduler = router(roles="mm")
    for index in range(8):
        decode(scheduler, f"r{index}", 0)

    assert scheduler.migrate(0.5) == []


def test_a_drained_replica_gives_its_decodes_away() -> None:
    scheduler = router(roles="mdd")
    for index in range(4):
        decode(scheduler, f"r{index}", 0)
    drain(scheduler, 0)

    moves = scheduler.migrate(0.1)

    assert {move.request_id for move in moves} == {f"r{index}" for index in range(4)}
    assert {move.target for move in moves} == {1, 2}  # the account changes with each move
    assert scheduler.state.replicas[0].decodes == {}
    assert scheduler.state.replicas[0].decode_tokens == 0


def test_a_replica_short_of_memory_gives_away_its_latest_until_it_is_not() -> None:
    scheduler = router(roles="dd")
    for index in range(12):
        decode(scheduler, f"r{index}", 0, num_tokens=400, at_s=0.01 * index)

    moves = scheduler.migrate(0.2)

    assert [move.request_id for move in moves] == ["r11", "r10"]  # 12 x 400 of 4,096 tokens
    assert scheduler.state.replicas[0].decode_tokens <= FULL_SHARE * 4096
    assert scheduler.migrate(0.2) == []


def test_outputs_that_outgrow_what_was_expected_make_a_replica_short() -> None:
    scheduler = router(roles="dd")
    for index in range(10):
        decode(scheduler, f"r{index}", 0)

    assert scheduler.migrate(0.5) == []
    assert scheduler.migrate(5.0)


def test_nobody_is_filled_past_what_would_send_decodes_back() -> None:
    scheduler = router(roles="dd")
    for index in range(12):
        decode(scheduler, f"r{index}", 0)
    for index in range(8):
        decode(scheduler, f"s{index}", 1)

    moves = scheduler.migrate(1.0)

    assert len(moves) == 0 or scheduler.state.replicas[1].decode_tokens <= ROOM_SHARE * 4096
    assert scheduler.migrate(1.1) == []


def test_a_move_that_takes_longer_than_what_it_saves_is_not_made() -> None:
    scheduler = router(roles="md")
    decode(scheduler, "long", 0, num_tokens=3000, at_s=-1000.0)  # a token or so is left, and 0.3 s of transfer
    scheduler.state.replicas[0].decode_weight = 0.0

    assert scheduler.migrate(0.0) == []


def test_prompts_that_are_not_computed_and_requests_on_their_way_stay() -> None:
    scheduler = router(roles="mdd")
    decode(scheduler, "r", 0)
    request = cluster_request("waiting")
    scheduler._placed[request.request_id] = _Placed(request, 0, 0)
    scheduler.state.replicas[0].add_decode(request.request_id, 120, 5.0)
    drain(scheduler, 0)

    assert [move.request_id for move in scheduler.migrate(0.1)] == ["r"]
    assert scheduler.migrate(0.2) == []


def test_a_request_that_its_replica_kept_counts_there_again() -> None:
    scheduler = router(roles="md")
    decode(scheduler, "r", 0)
    drain(scheduler, 0)
    assert scheduler.migrate(0.1) == [Migration(RequestId("r"), 0, 1)]

    scheduler.note_moved(RequestId("r"), 0)

    assert list(scheduler.state.replicas[0].decodes) == ["r"]
    assert scheduler.state.replicas[1].decode_tokens == 0
    scheduler.note_ended(RequestId("r"), 10, 1.0)
    assert scheduler.state.replicas[0].decode_tokens == 0


def test_no_request_is_moved_for_ever() -> None:
    scheduler = router(roles="mm")
    decode(scheduler, "r", 0)
    num_moves = 0
    for turn in range(10):
        for replica in scheduler.state.replicas:
            replica.decode_weight = 1.0
        here = scheduler._placed[RequestId("r")].decode
        scheduler.state.replicas[here].decode_weight = 0.0
        scheduler.state.replicas[here].add_prefill(RequestId(f"prompts {turn}"), 3.0, 0.0)
        for move in scheduler.migrate(0.0):
            num_moves += 1
            scheduler.note_moved(move.request_id, move.target)

    assert 1 <= num_moves <= MAX_MOVES


def test_the_loss_of_the_target_gives_the_request_back() -> None:
    scheduler = router(roles="md")
    decode(scheduler, "r", 0)
    drain(scheduler, 0)
    scheduler.migrate(0.1)

    assert scheduler.note_down(1, 0.2) == ["r"]
    scheduler.note_moved(RequestId("r"), 1)  # of no effect
    assert all(replica.decode_tokens == 0 for replica in scheduler.state.replicas)
