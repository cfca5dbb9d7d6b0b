"""The event driver takes the same decisions as a loop in real time, and two runs give the same bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
import pytest
from tests.fakes.engine_world import World, request

from kvist.config.scheduler_config import POLICIES, QUEUE_ORDERS
from kvist.core.errors import KvistError
from kvist.core.request import NewRequest
from kvist.core.step_plan import StepPlan
from kvist.engine.engine_core import EngineCore, OpenStep
from kvist.scheduler.drafting import Speculator
from kvist.simulator.simulated_executor import linear_duration
from kvist.speculation.adaptive_speculator import AdaptiveSpeculator
from kvist.speculation.proposers import ModelProposer, NgramProposer, Proposer

both_depths = pytest.mark.parametrize("depth", [1, 2])


def trace() -> list[NewRequest]:
    """Shared prefixes, samples, bursts, pauses; more than a small pool holds."""
    shared = list(range(70))
    requests = [
        request(f"r{index}", [*shared[: 10 * (index % 8)], *(9_000 + index + k for k in range(index * 7 % 50))] or 5,
                max_tokens=3 + index * 11 % 60, at=index // 3 * 0.9, priority=index % 3, eos=(3, 4))
        for index in range(24)
    ]  # fmt: skip
    samples = [
        request(f"s{index}", shared[:33], at=4.0, sample_index=index, fork_of="s0" if index else None)
        for index in range(4)
    ]
    return sorted(requests + samples, key=lambda new: new.arrival_time_s)


def world(
    depth: int, policy: str = "chunked_prefill", queue_order: str = "fcfs", speculator: Speculator | None = None
) -> World:
    return World(
        num_blocks=24,
        budget=48,
        depth=depth,
        max_model_len=300,
        vocab_size=50,
        duration=linear_duration(per_step_s=0.3, per_token_s=0.01),
        speculator=speculator,
        config={"policy": policy, "queue_order": queue_order, "max_num_seqs": 12, "check_invariants": False},
    )


def run_in_real_time(core: EngineCore, requests: list[NewRequest], depth: int) -> list[StepPlan]:
    """A serving loop with a clock that jumps: take commands, begin while steps may be open, wait for the oldest."""
    clock_s = device_free_s = 0.0
    inbox = deque(requests)
    open_steps: deque[tuple[OpenStep, float, float]] = deque()  # with start and end
    plans: list[StepPlan] = []
    while inbox or open_steps or core.has_unfinished_requests:
        while inbox and inbox[0].arrival_time_s <= clock_s:
            try:
                core.add_request(inbox.popleft(), clock_s)
            except KvistError:
                pytest.fail("nothing is refused here")
        step = core.begin(clock_s)
        if step is not None:
            plans.append(step.plan)
            started_s = max(clock_s, device_free_s)
            device_free_s = started_s + step.handle.duration_s
            open_steps.append((step, started_s, device_free_s))
            if len(open_steps) < depth:
                continue
        if open_steps:
            oldest, started_s, ends_s = open_steps.popleft()
            core.wait(oldest)
            clock_s = max(clock_s, ends_s)
            core.finish(oldest, clock_s, clock_s - started_s)
        elif inbox:
            clock_s = inbox[0].arrival_time_s
    return plans


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [lambda: NgramProposer(min_length=1, max_length=4), ModelProposer])
def test_drafts_are_the_same_in_real_time_and_virtual_time(make: Callable[[], Proposer], policy: str) -> None:
    def one() -> World:
        return world(1, policy, speculator=AdaptiveSpeculator(make(), max_draft_tokens=5))

    virtual = one()
    virtual.run(*trace())
    plans = run_in_real_time(one().core, trace(), 1)
    assert any(plan.draft_token_ids or plan.num_model_drafts for plan in plans)
    assert [msgspec.msgpack.encode(plan) for plan in plans] == [
        msgspec.msgpack.encode(plan) for plan in virtual.driver.plans
    ]


@both_depths
@pytest.mark.parametrize("queue_order", QUEUE_ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_real_time_and_virtual_time_plan_the_same_steps(depth: int, policy: str, queue_order: str) -> None:
    simulated, served = world(depth, policy, queue_order), world(depth, policy, queue_order)
    simulated.run(*trace())
    plans = run_in_real_time(served.core, trace(), depth)
    assert plans == simulated.driver.plans
    assert len(plans) > 30
    simulated.assert_at_rest()
    served.assert_at_rest()


@both_depths
def test_two_runs_give_byte_equal_event_logs(depth: int) -> None:
    logs = [msgspec.json.encode(world(depth).run(*trace())) for _ in range(2)]
    assert logs[0] == logs[1]


@both_depths
def test_time_never_goes_back_and_steps_are_finished_in_order(depth: int) -> None:
    batches = world(depth).run(*trace())
    times = [batch.time_s for batch in batches]
    assert times == sorted(times)
    steps = [batch.step.step_id for batch in batches if batch.step is not None]
    assert steps == list(range(len(steps)))


@both_depths
def test_the_policy_and_the_order_change_when_but_never_what(depth: int) -> None:
    reference = World(num_blocks=512, vocab_size=50)
    reference.run(*trace())
    for policy in POLICIES:
        for queue_order in QUEUE_ORDERS:
            other = world(depth, policy, queue_order)
            other.run(*trace())
            assert other.outputs() == reference.outputs(), (policy, queue_order)
            assert other.reasons() == reference.reasons(), (policy, queue_order)


def test_a_step_takes_its_own_time_also_when_another_was_open_before_it() -> None:
    batches = world(depth=2).run(*trace())
    steps = [batch.step for batch in batches if batch.step is not None]
    for step in steps:
        num_tokens = step.num_scheduled_tokens + step.num_padding_tokens
        assert step.step_time_s == pytest.approx(0.3 + 0.01 * num_tokens)


def test_what_arrives_during_a_step_is_looked_at_when_it_ends() -> None:
    busy = World()
    batches = busy.run(request("a", max_tokens=4), request("b", at=0.5))
    assert next(batch.time_s for batch in batches if batch.events and batch.events[0].request_id == "b") == 1.0
