"""The budget in seconds: what a step may take for its streams, who comes first, and that nobody waits for ever."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fakes.engine_world import World, request

from kvist.core.request import LatencyTargets, NewRequest, Request, RequestId, RequestState, pack_token_ids
from kvist.core.request_events import ChunkCut
from kvist.core.sampling_params import SamplingParams
from kvist.costmodel.step_work import StepWork
from kvist.scheduler.policies.slo_budget import slo_budget
from kvist.scheduler.policy import Candidate, Grants, PolicyView
from kvist.scheduler.queue_orders import OVERDUE_SHARE, SlackQueue
from kvist.scheduler.slack import PrefillPace
from kvist.scheduler.stream_limits import MAX_GAP, PLANNED_SHARE
from kvist.scheduler.tracked_request import TrackedRequest, track

BUDGET = 1000
NOW = 100.0


class OneMsPerToken:
    """5 ms a step and 1 ms a token."""

    def predict_s(self, work: StepWork) -> float:
        return 0.005 + 0.001 * work.num_tokens if work.num_tokens else 0.0

    def margin_s(self, work: StepWork) -> float:
        return 0.0

    def observe(self, work: StepWork, seconds: float) -> None:
        pass


def made(
    name: str,
    *,
    num_prompt_tokens: int = 10,
    num_output_tokens: int = 0,
    max_output_tokens: int = 1,
    state: RequestState = RequestState.WAITING,
    first_token_s: float | None = None,
    targets: LatencyTargets,
) -> Request:
    new = NewRequest(
        request_id=RequestId(name),
        prompt_token_ids=pack_token_ids([1] * num_prompt_tokens),
        sampling=SamplingParams(),
        arrival_time_s=0.0,
    )
    num_known = num_prompt_tokens + num_output_tokens
    return Request(
        new=new,
        token_ids=array("i", [1] * num_known),
        num_prompt_tokens=num_prompt_tokens,
        max_total_tokens=num_prompt_tokens + num_output_tokens + max_output_tokens,
        state=state,
        num_computed_tokens=num_known - 1 if num_output_tokens else 0,
        first_token_s=first_token_s,
        targets=targets,
    )


def stream(name: str = "stream", *, tpot_s: float, lead_s: float = 0.0, num_left: int = 1) -> Request:
    """It has two tokens, the last of which was due `lead_s` after now. tpot_s: as planned for."""
    return made(
        name,
        num_output_tokens=2,
        max_output_tokens=num_left,
        state=RequestState.RUNNING,
        first_token_s=NOW + lead_s - tpot_s,
        targets=LatencyTargets(tpot_s=tpot_s / PLANNED_SHARE),
    )


def prompt(name: str = "prompt", *, num_tokens: int = 500, tpot_s: float = 10.0, slack_s: float = 1000.0) -> Request:
    """It is in time if it is begun within `slack_s`."""
    prefill_s = 0.005 + 0.001 * num_tokens
    targets = LatencyTargets(first_token_by_s=NOW + slack_s + prefill_s, prefill_s=prefill_s, tpot_s=tpot_s)
    return made(name, num_prompt_tokens=num_tokens, targets=targets)


def grants(
    streams: Sequence[Request] = (), waiting: Sequence[Request] = (), begun: Sequence[Request] = (), slow: float = 1.0
) -> Grants:
    for each in begun:
        each.state = RequestState.RUNNING
    view = PolicyView(
        decoding=list(streams),
        prefilling=list(begun),
        waiting=iter([Candidate(each, each.num_tokens_to_schedule) for each in waiting]),
        max_chunk_tokens=BUDGET,
        num_admitted_since_idle=len(streams),
        now=NOW,
        step_times=OneMsPerToken(),
        prefill_slowdown=slow,
    )
    return slo_budget(view, BUDGET)


def test_without_streams_a_step_takes_the_whole_budget() -> None:
    assert grants(waiting=[prompt(num_tokens=700), prompt("second")]).by_request() == {"prompt": 700, "second": 300}


def test_a_chunk_is_the_longest_that_ends_the_step_in_time_for_the_tightest_stream() -> None:
    granted = grants([stream("slow", tpot_s=0.3), stream("fast", tpot_s=0.1)], [prompt()])
    assert granted.by_request() == {"slow": 1, "fast": 1, "prompt": 93}  # 5 ms + 95 tokens = 100 ms


def test_a_stream_ahead_of_its_pace_lends_half_of_its_lead() -> None:
    granted = grants([stream(tpot_s=0.1, lead_s=0.06)], [prompt()])
    assert granted.by_request()["prompt"] == 93 + 1 + 30


def test_a_stream_with_many_tokens_to_come_borrows_half_of_what_it_can_win_back() -> None:
    granted = grants([stream(tpot_s=0.1, num_left=3)], [prompt()])
    assert granted.by_request()["prompt"] == 94 + 94  # two tokens, each 94 ms faster than it must be, by half


def test_no_gap_is_planned_longer_than_the_limit_however_far_ahead_a_stream_is() -> None:
    granted = grants([stream(tpot_s=0.1, lead_s=9.0, num_left=900)], [prompt()])
    assert granted.by_request()["prompt"] == round(1000 * MAX_GAP * 0.1) - 6


def test_a_stream_behind_its_pace_takes_the_step_for_itself_until_it_has_caught_up() -> None:
    assert grants([stream(tpot_s=0.1, lead_s=-1.5, num_left=20)], [prompt()]).by_request() == {"stream": 1}


def test_a_stream_that_has_lost_its_target_holds_nobody_down_but_is_not_forgotten() -> None:
    lost = stream(tpot_s=0.1, lead_s=-5.0)
    assert grants([lost], [prompt()]).by_request()["prompt"] == 200 - 6
    assert grants([lost, stream("fast", tpot_s=0.05)], [prompt()]).by_request()["prompt"] == 50 - 7


def test_a_cut_chunk_says_for_whose_target() -> None:
    (cut,) = grants([stream(tpot_s=0.1)], [prompt(num_tokens=300)]).cuts
    assert (cut.request.request_id, cut.num_tokens, cut.num_wanted_tokens) == ("prompt", 94, 300)
    assert (cut.limit_s, cut.tpot_s) == (pytest.approx(0.1), 0.1 / PLANNED_SHARE)
    assert grants([stream(tpot_s=0.1)], [prompt(num_tokens=30)]).cuts == []


def test_nobody_starts_whom_the_streams_could_not_bear() -> None:
    streams = [stream(f"stream{index}", tpot_s=0.02, lead_s=1.0) for index in range(9)]
    assert grants(streams, [prompt()]).chunks == []  # 5 ms + 10 tokens are more than 0.7 of 20 ms
    assert grants(streams[:7], [prompt()]).chunks != []
    assert grants(streams, [], [prompt()]).chunks != []  # it has begun: let it end


def test_one_that_is_late_starts_only_where_there_is_more_room() -> None:
    streams = [stream(f"stream{index}", tpot_s=0.02, lead_s=1.0) for index in range(7)]
    assert grants(streams, [prompt(slack_s=-1.0)]).chunks == []
    assert grants(streams[:4], [prompt(slack_s=-1.0)]).chunks != []


def test_prompts_go_by_slack_and_those_that_are_late_last() -> None:
    begun = [prompt("relaxed", slack_s=50.0), prompt("late", slack_s=-1.0)]
    granted = grants([], [prompt("urgent", slack_s=1.0), prompt("easy", slack_s=60.0)], begun)
    assert list(granted.by_request()) == ["urgent", "relaxed"]
    slower = grants([], [prompt("urgent", slack_s=1.0)], [prompt("relaxed", slack_s=50.0)], slow=4.0)
    assert list(slower.by_request()) == ["relaxed", "urgent"], "at this pace it will not be in time"


def tracked(name: str, number: int, *, slack_s: float, overdue_s: float = 1e9) -> TrackedRequest:
    one = track(request(name), max_total_tokens=50, rank=(0.0, number), now=0.0)
    one.targets = LatencyTargets(first_token_by_s=NOW + slack_s, overdue_at_s=overdue_s)
    return one


def order(queue: SlackQueue) -> list[str]:
    return [one.id for one in queue.in_order(NOW, lambda one: 0)]


def test_the_queue_goes_by_slack_then_by_arrival_for_those_that_are_late() -> None:
    queue = SlackQueue(PrefillPace())
    slacks = {"relaxed": 9.0, "late": -2.0, "urgent": 1.0, "later": -1.0}
    for number, (name, slack_s) in enumerate(slacks.items()):
        queue.add(tracked(name, number, slack_s=slack_s))
    assert order(queue) == ["urgent", "relaxed", "late", "later"]


def test_one_that_has_waited_too_long_comes_first_once_in_a_while() -> None:
    queue = SlackQueue(PrefillPace())
    queue.add(tracked("old", 0, slack_s=-9.0, overdue_s=NOW - 1.0))
    others = [tracked(f"r{index}", index + 1, slack_s=5.0) for index in range(OVERDUE_SHARE)]
    for other in others:
        queue.add(other)
    firsts = []
    for other in others:
        firsts.append(order(queue)[0])
        queue.remove(other)
    assert firsts.count("old") == 1
    assert order(queue)[0] == "old"


def test_one_that_was_preempted_comes_before_all() -> None:
    queue = SlackQueue(PrefillPace())
    queue.add(tracked("urgent", 0, slack_s=0.5))
    preempted = tracked("preempted", 1, slack_s=-5.0)
    preempted.num_preemptions = 1
    queue.add(preempted)
    assert order(queue) == ["preempted", "urgent"]
    queue.remove(preempted)
    assert order(queue) == ["urgent"]


def test_targets_that_nobody_can_meet_delay_nobody_for_ever() -> None:
    world = World(config={"policy": "slo_budget", "max_num_seqs": 4})  # a step takes a second
    requests = [
        replace_targets(request(f"r{index}", 200, 20, at=float(index)), ttft_ms=1.0, tpot_ms=1.0) for index in range(12)
    ]
    world.run(*requests)
    assert len(world.finished()) == 12
    world.assert_at_rest()


def test_the_pace_is_what_prompts_take_here_and_now() -> None:
    pace = PrefillPace()
    assert pace.slowdown == 1.0
    one = prompt(num_tokens=100)
    for _ in range(5):
        pace.note_step([(one, 10)], 0.042)  # a tenth of 105 ms, in four times as long
    assert pace.slowdown == pytest.approx(4.0)


def test_a_cut_reaches_the_events_of_its_request() -> None:
    world = World(config={"policy": "slo_budget"}, duration=lambda plan: 0.001 * (1 + plan.num_total_tokens))
    world.run(
        replace_targets(request("stream", 8, 600), tpot_ms=30.0),
        replace_targets(request("prompt", 500, 4, at=0.5), tpot_ms=10_000.0),
    )
    cuts = world.of_type(ChunkCut)
    assert cuts
    assert {cut.request_id for cut in cuts} == {"prompt"}
    assert all(cut.num_tokens < cut.num_wanted_tokens and cut.tpot_s == 0.03 for cut in cuts)


def replace_targets(new: NewRequest, **targets: float) -> NewRequest:
    fields = {name: getattr(new, name) for name in new.__struct_fields__}
    return NewRequest(**{**fields, **targets})


def test_a_request_brings_its_own_targets_or_gets_the_defaults() -> None:
    world = World(config={"policy": "slo_budget", "default_ttft_ms": 500.0, "default_tpot_ms": 40.0})
    world.driver.submit([request("plain", at=1.0), replace_targets(request("own", at=1.0), ttft_ms=90.0, tpot_ms=7.0)])
    world.driver.run(until_s=1.0)
    plain, own = (world.scheduler._state.requests[RequestId(name)].targets for name in ("plain", "own"))
    assert (plain.first_token_by_s, plain.tpot_s) == (1.5, 0.04)
    assert (own.first_token_by_s, own.tpot_s) == (1.09, 0.007)
    assert replace(own, tpot_s=1.0).start_by_s == own.first_token_by_s - own.prefill_s
