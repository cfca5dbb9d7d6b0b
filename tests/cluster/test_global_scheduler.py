"""Decisions over many replicas: splitting, refusing, holding back, following failures and changing roles."""

from __future__ import annotations

import pytest
from tests.fakes.cluster_world import cluster_request, hold, placed, router

from kvist.cluster.cluster_request import Held, Placement, Rejection
from kvist.cluster.global_scheduler import GlobalScheduler
from kvist.core.request import RequestId


def end_some(scheduler: GlobalScheduler, count: int = 20) -> None:
    """Let requests pass, so that predictions rest on something."""
    for index in range(count):
        request = cluster_request(f"early{index}", 20)
        placed(scheduler, request)
        scheduler.note_first_token(request.request_id, 0.0)
        scheduler.note_ended(request.request_id, 20, 0.0)


def test_roles_decide_who_prefills_and_who_decodes() -> None:
    scheduler = router(roles="ppdd")
    for index in range(20):
        placement = placed(scheduler, cluster_request(f"r{index}"))
        assert placement.prefill in (0, 1)
        assert placement.decode in (2, 3)
        assert placement.is_split


def test_a_mixed_replica_keeps_a_request_unless_prompts_in_its_queue_would_slow_it_down() -> None:
    scheduler = router(roles="md")
    assert placed(scheduler, cluster_request("a")).decode == 0
    scheduler.state.replicas[0].add_prefill(RequestId("long"), 3.0, 0.0)
    assert placed(scheduler, cluster_request("b")).decode == 1


def test_outputs_go_where_memory_is() -> None:
    scheduler = router(roles="pdd")
    scheduler.state.replicas[1].add_decode(RequestId("big"), 4_050, 0.0)
    assert placed(scheduler, cluster_request("a")).decode == 2


def test_all_work_is_forgotten_when_requests_end() -> None:
    scheduler = router(roles="pd")
    for index in range(5):
        placed(scheduler, cluster_request(f"r{index}"))
    for index in range(5):
        scheduler.note_first_token(RequestId(f"r{index}"), 1.0)
        scheduler.note_ended(RequestId(f"r{index}"), 7, 2.0)
    for replica in scheduler.state.replicas:
        assert (replica.prefills, replica.decodes) == ({}, {})
        assert (replica.prefill_s, replica.decode_tokens) == (0.0, 0)


def test_a_lost_replica_gives_its_requests_back_and_gets_no_more_until_it_is_up() -> None:
    scheduler = router(2)
    requests = [cluster_request(f"r{index}") for index in range(8)]
    mine = [r.request_id for r in requests if placed(scheduler, r).prefill == 0]
    assert scheduler.note_down(0, 1.0) == mine
    assert mine
    assert {placed(scheduler, cluster_request(f"s{index}"), 1.0).prefill for index in range(6)} == {1}
    scheduler.note_up(0, 2.0)
    assert 0 in {placed(scheduler, cluster_request(f"t{index}"), 2.0).prefill for index in range(6)}


def test_without_any_replica_requests_are_refused() -> None:
    scheduler = router(1)
    scheduler.note_down(0, 0.0)
    decision = scheduler.place(cluster_request("a"), 0.0)
    assert isinstance(decision, Rejection)
    assert "no replica" in decision.why


@pytest.mark.parametrize("rejection", ["early", "predicted"])
def test_a_request_that_would_miss_its_first_token_is_refused_early(rejection: str) -> None:
    scheduler = router(roles="pd", rejection=rejection, ttft_slo_s=1.0)
    end_some(scheduler)
    scheduler.state.replicas[0].add_prefill(RequestId("long"), 5.0, 0.0)
    decision = scheduler.place(cluster_request("a"), 0.0)
    assert isinstance(decision, Rejection)
    assert decision.retry_after_s == pytest.approx(4.0, abs=0.5)


def test_nothing_is_refused_before_anything_was_measured() -> None:
    scheduler = router(roles="pd", rejection="early", ttft_slo_s=1e-6, tpot_slo_s=1e-6)
    assert isinstance(scheduler.place(cluster_request("a"), 0.0), Placement)


def test_early_rejection_looks_at_now_and_predicted_rejection_at_when_the_prompt_is_done() -> None:
    decisions = {}
    for rejection in ("early", "predicted"):
        scheduler = router(roles="pd", rejection=rejection, tpot_slo_s=0.0125)
        end_some(scheduler)
        for index in range(12):  # they decode now, and will have ended by then
            request = cluster_request(f"now{index}", 20)
            scheduler.state.replicas[1].add_decode(request.request_id, 40, 0.0)
            scheduler.state.replicas[1].start_decode(request.request_id, 0.0)
        scheduler.state.replicas[0].add_prefill(RequestId("long"), 3.0, 0.0)
        decisions[rejection] = scheduler.place(cluster_request("a", 20), 0.0)
    assert isinstance(decisions["early"], Rejection)
    assert isinstance(decisions["predicted"], Placement)


def test_rejection_at_decode_spends_the_prefill_first() -> None:
    scheduler = router(roles="pd", rejection="at_decode", tpot_slo_s=0.0105)
    end_some(scheduler)
    request = cluster_request("a", 20)
    placed(scheduler, request)
    for index in range(12):
        scheduler.state.replicas[1].add_decode(RequestId(f"x{index}"), 40, 0.0)
        scheduler.state.replicas[1].start_decode(RequestId(f"x{index}"), 0.0)
    assert not scheduler.note_first_token(request.request_id, 1.0)


def test_requests_held_back_are_given_out_fairly_between_tenants() -> None:
    scheduler = router(1, max_queue_s=0.05)
    scheduler.state.replicas[0].add_prefill(RequestId("long"), 1.0, 0.0)
    for index in range(6):
        assert isinstance(scheduler.place(cluster_request(f"a{index}", tenant="greedy"), 0.0), Held)
    for index in range(2):
        assert isinstance(scheduler.place(cluster_request(f"b{index}", tenant="modest"), 0.0), Held)
    order = []
    for turn in range(8):
        for request_id in list(scheduler.state.replicas[0].prefills):
            scheduler.state.replicas[0].end_prefill(request_id, 1.0 + turn)
        for request, decision in scheduler.take_released(1.0 + turn):
            assert isinstance(decision, Placement)
            order.append(request.request_id)
    assert sorted(order) == sorted(["a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1"])
    assert {"b0", "b1"} <= set(order[:4])
    assert scheduler.num_held == 0


def test_a_replica_changes_its_role_only_when_a_phase_is_short_twice_and_never_the_last_one() -> None:
    scheduler = router(roles="pdd", ttft_slo_s=1.0, tpot_slo_s=0.5)
    scheduler.state.replicas[0].add_prefill(RequestId("long"), 50.0, 0.0)
    assert scheduler.balance_roles(0.0) is None
    change = scheduler.balance_roles(1.0)
    assert change is not None
    assert (change.prefill_weight, change.decode_weight) == (1.0, 0.0)
    assert change.replica_id in (1, 2)
    scheduler.balance_roles(2.0)
    assert scheduler.balance_roles(3.0) is None


def test_what_the_decoding_replica_holds_need_not_be_sent() -> None:
    scheduler = router(roles="pd")
    request = cluster_request("a", 100)
    hold(scheduler, 1, request)
    assert placed(scheduler, request).num_held_at_decode == 96
