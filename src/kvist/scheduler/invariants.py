"""The scheduler's invariants, checked after each step in checking mode."""

from __future__ import annotations

from kvist.core.request import RequestState
from kvist.kvcache.invariants import check_invariants
from kvist.scheduler.scheduler_state import SchedulerState
from kvist.scheduler.tracked_request import TrackedRequest

WAITING_STATES = (RequestState.WAITING, RequestState.WAITING_FOR_KV, RequestState.PREEMPTED)


def check_scheduler(state: SchedulerState, *, max_running: int) -> None:
    """Raise AssertionError, saying which, if an invariant of requests, queues, blocks or open steps is broken."""
    waiting = {request.id: request for request in state.queue}
    running = state.running
    assert len(waiting) == len(state.queue), "a request waits twice"
    assert not waiting.keys() & running.by_id.keys(), "a request waits and runs"
    handover = state.handover
    stages = [handover.asked, handover.receiving, handover.arrived]
    elsewhere = {id_ for stage in stages for id_ in stage}
    assert len(elsewhere) == sum(map(len, stages)), "a request waits for KV from elsewhere twice"
    assert not elsewhere & (waiting.keys() | running.by_id.keys()), "a request waits for KV and is in another queue"
    assert waiting.keys() | running.by_id.keys() | elsewhere == state.requests.keys(), "a request is in no queue"
    assert state.joined.keys() <= running.by_id.keys(), "a request that does not run is to be introduced"
    assert state.queue.num_tokens == sum(request.num_tokens for request in waiting.values()), "waiting tokens"
    assert len(running) + handover.num_holding <= max_running, f"{len(running)} requests run, at most {max_running} may"
    lists = running.decoding + running.prefilling
    assert len(set(lists)) == len(lists), "a running request is listed twice"
    assert set(lists) <= set(running.by_id.values()), "a listed request does not run"
    for request in waiting.values():
        _check_waiting(request)
    for request in running.by_id.values():
        _check_running(request, state, is_listed=request in lists)
    check_invariants(state.kv_cache)
    tables = {request.id: request.table for request in running.by_id.values()} | handover.tables()
    assert tables == dict(state.kv_cache.tables), "the cache's open tables are not those of running requests and leases"


def _check_waiting(request: TrackedRequest) -> None:
    assert request.state in WAITING_STATES, f"{request.id} waits in state {request.state}"
    assert request.table is None, f"{request.id} waits and holds blocks"
    assert request.num_computed_tokens == 0, f"{request.id} waits and has computed tokens"
    assert request.num_in_flight_tokens == request.num_in_flight_samples == 0, f"{request.id} waits and is in flight"


def _check_running(request: TrackedRequest, state: SchedulerState, *, is_listed: bool) -> None:
    assert request.state is RequestState.RUNNING, f"{request.id} runs in state {request.state}"
    assert request.table is not None, f"{request.id} runs without blocks"
    assert request.num_computed_tokens <= request.num_tokens, f"{request.id} computed unknown tokens"
    num_covered = len(request.table.block_ids) * state.block_size
    num_scheduled = request.num_computed_tokens + request.num_in_flight_tokens
    assert num_covered == request.num_covered_tokens >= num_scheduled, f"{request.id}: blocks do not cover its tokens"
    assert request.num_tokens + request.num_in_flight_samples <= request.max_total_tokens, f"{request.id} overruns"
    num_drafts = max((step.num_drafts.get(request.id, 0) for step in state.open_steps), default=0)
    assert num_covered >= num_scheduled + num_drafts, f"{request.id}: blocks do not cover its drafts"
    num_rows = num_samples = 0
    for step in state.open_steps:
        if request in step.stale:
            continue
        for row, member in enumerate(step.decodes + step.chunks):
            if member is request:
                num_rows += step.plan.num_scheduled_tokens[row] - step.num_drafts.get(request.id, 0)
                num_samples += step.plan.samples[row]
    assert num_rows == request.num_in_flight_tokens, f"{request.id}: tokens in flight"
    assert num_samples == request.num_in_flight_samples, f"{request.id}: samples in flight"
    assert is_listed == (request.num_tokens_to_schedule > 0 and not _ends(request)), f"{request.id}: wrong list"


def _ends(request: TrackedRequest) -> bool:
    """Whether all it needs is scheduled: the last token is sampled without being computed."""
    return (
        request.num_unscheduled_tokens <= 0
        and request.num_tokens + request.num_in_flight_samples >= request.max_total_tokens
    )
