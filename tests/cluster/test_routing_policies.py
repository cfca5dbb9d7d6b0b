"""Laws that every routing policy obeys, and what each of them is for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.cluster_world import cluster_request, hold, placed, router

from kvist.cluster.cluster_request import Placement
from kvist.config.cluster_config import ROUTERS

every_policy = pytest.mark.parametrize("policy", ROUTERS)

sizes = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40)


def play(policy: str, load: list[tuple[int, int, int]], down: set[int], seed: int = 0) -> list[Placement]:
    """Place requests 50 ms apart; every third one is done before the next comes."""
    scheduler = router(4, policy=policy, seed=seed)
    for number in sorted(down):
        scheduler.note_down(number, 0.0)
    placements = []
    for index, (num_tokens, session, text) in enumerate(load):
        request = cluster_request(f"{text}", max(num_tokens, 1), session_id=f"s{session}")
        request = cluster_request(
            f"r{index}", list(memoryview(request.prompt_token_ids).cast("i")), session_id=f"s{session}"
        )
        now = index * 0.05
        placement = placed(scheduler, request, now)
        placements.append(placement)
        if index % 3 == 0:
            hold(scheduler, placement.prefill, request, first_block=index * 100)
            scheduler.note_first_token(request.request_id, now + 0.02)
            scheduler.note_ended(request.request_id, 5, now + 0.03)
    return placements


@every_policy
@settings(max_examples=25, deadline=None)
@given(load=sizes, down=st.sets(st.integers(0, 3), max_size=3))
def test_only_live_replicas_are_chosen(policy: str, load: list[tuple[int, int, int]], down: set[int]) -> None:
    for placement in play(policy, load, down):
        assert placement.prefill not in down
        assert placement.decode not in down


@every_policy
@settings(max_examples=15, deadline=None)
@given(load=sizes)
def test_the_same_calls_give_the_same_placements(policy: str, load: list[tuple[int, int, int]]) -> None:
    assert play(policy, load, set()) == play(policy, load, set())


@every_policy
def test_under_steady_load_every_replica_gets_work(policy: str) -> None:
    load = [(100, index, 0) for index in range(60)]
    scheduler = router(4, policy=policy)
    chosen = {
        placed(scheduler, cluster_request(f"r{index}", size), index * 1e-3).prefill
        for index, (size, _, _) in enumerate(load)
    }
    assert chosen == {0, 1, 2, 3}


@every_policy
def test_a_hot_prefix_does_not_drown_one_replica(policy: str) -> None:
    scheduler = router(4, policy=policy)
    prompt = list(range(320))
    hold(scheduler, 0, cluster_request("first", prompt))
    counts = [0] * 4
    for index in range(80):
        placement = placed(scheduler, cluster_request(f"r{index}", [*prompt, 5_000 + index]), index * 1e-3)
        counts[placement.prefill] += 1
        if counts[placement.prefill] == 1 and placement.prefill != 0:
            hold(scheduler, placement.prefill, cluster_request("copy", prompt))
    assert max(counts) < 60


@pytest.mark.parametrize("policy", ["cache_aware", "kv_centric"])
def test_the_replica_with_the_longest_prefix_is_preferred(policy: str) -> None:
    scheduler = router(4, policy=policy)
    prompt = list(range(256))
    hold(scheduler, 2, cluster_request("first", prompt))
    placement = placed(scheduler, cluster_request("again", [*prompt, 9_999]))
    assert placement.prefill == 2


def test_a_session_stays_while_that_pays_and_leaves_when_its_replica_is_busy() -> None:
    scheduler = router(4, policy="session_affinity")
    prompt = list(range(256))
    first = placed(scheduler, cluster_request("a", prompt, session_id="s"))
    hold(scheduler, first.prefill, cluster_request("a", prompt))
    scheduler.note_first_token(cluster_request("a", prompt).request_id, 0.1)
    again = placed(scheduler, cluster_request("b", [*prompt, 7], session_id="s"), 0.2)
    assert again.prefill == first.prefill
    for index in range(40):
        scheduler.state.replicas[first.prefill].add_prefill(cluster_request(f"x{index}").request_id, 0.5, 0.3)
    assert placed(scheduler, cluster_request("c", [*prompt, 8], session_id="s"), 0.3).prefill != first.prefill


def test_round_robin_follows_the_weights() -> None:
    scheduler = router(3, policy="round_robin")
    scheduler.state.replicas[0].prefill_weight = 2.0
    counts = [0] * 3
    for index in range(40):
        counts[placed(scheduler, cluster_request(f"r{index}")).prefill] += 1
    assert counts == [20, 10, 10]


def test_kv_is_fetched_to_an_idle_replica_when_the_owner_is_busy_and_the_prefix_is_long() -> None:
    scheduler = router(2, policy="kv_centric")
    scheduler._predictor._kv_bytes_per_token = 1_000  # cheap to move
    prompt = list(range(1_600))
    hold(scheduler, 0, cluster_request("first", prompt))
    scheduler.state.replicas[0].add_prefill(cluster_request("long").request_id, 5.0, 0.0)
    placement = placed(scheduler, cluster_request("r", [*prompt, 1]))
    assert placement.prefill == 1
    assert placement.source is not None
    assert placement.source.replica_id == 0
    assert placement.num_incoming_tokens == 1_600


def test_kv_that_is_dearer_to_move_than_to_compute_is_computed() -> None:
    scheduler = router(2, policy="kv_centric")
    scheduler._predictor._kv_bytes_per_token = 10**9
    prompt = list(range(1_600))
    hold(scheduler, 0, cluster_request("first", prompt))
    scheduler.state.replicas[0].add_prefill(cluster_request("long").request_id, 5.0, 0.0)
    placement = placed(scheduler, cluster_request("r", [*prompt, 1]))
    assert placement.prefill == 1
    assert placement.source is None
