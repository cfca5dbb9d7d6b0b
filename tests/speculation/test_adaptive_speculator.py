"""Drafting goes on where it pays, stops where it does not, and is tried again now and then."""

from __future__ import annotations

from tests.fakes.engine_world import request

from kvist.core.draft import Draft
from kvist.core.request import Request, RequestId, unpack_token_ids
from kvist.speculation.adaptive_speculator import AdaptiveSpeculator
from kvist.speculation.proposers import ModelProposer, NgramProposer, Offer


def a_request(request_id: str, token_ids: list[int]) -> Request:
    new = request(request_id, token_ids)
    return Request(new, unpack_token_ids(new.prompt_token_ids), len(token_ids), 4096)


class Play:
    """Steps of requests that always decode: `accepted` of every draft, times by a linear law."""

    def __init__(self, *, num_requests: int = 1, accepted: int, draft_s: float, base_s: float = 0.01) -> None:
        self.speculator = AdaptiveSpeculator(ModelProposer(), max_draft_tokens=5)
        self.requests = [a_request(f"r{i}", [1, 2, 3]) for i in range(num_requests)]
        self.accepted, self.draft_s, self.base_s = accepted, draft_s, base_s
        self.lengths: list[int] = []

    def run(self, num_steps: int) -> list[int]:
        for _ in range(num_steps):
            num_base = len(self.requests)
            limits = [100] * num_base
            drafts = self.speculator.propose(self.requests, limits, num_base_tokens=num_base, max_tokens=256)
            num_drafts = 0
            for each, draft in zip(self.requests, drafts, strict=True):
                if draft is not None:
                    num_drafts += draft.num_tokens
                    accepted = min(self.accepted, draft.num_tokens)
                    self.speculator.note_verified(each.request_id, draft.num_tokens, accepted)
            step_time_s = self.base_s + self.draft_s * num_drafts
            self.speculator.note_step(num_base_tokens=num_base, num_draft_tokens=num_drafts, step_time_s=step_time_s)
            self.lengths.append(num_drafts)
        return self.lengths[-num_steps:]


def test_drafts_get_long_where_they_are_accepted_and_cheap():
    play = Play(accepted=5, draft_s=0.0005)
    play.run(40)
    last = play.run(60)
    assert sum(last) >= 0.9 * 5 * len(last)


def test_drafting_stops_where_nothing_is_accepted_and_is_tried_again():
    play = Play(accepted=0, draft_s=0.002)
    play.run(100)
    last = play.run(400)
    assert 0 < sum(length > 0 for length in last) <= 10
    play.accepted = 5
    play.draft_s = 0.0005
    play.run(400)
    assert sum(play.run(50)) > 100


def test_drafting_stops_where_a_draft_costs_as_much_as_a_token_and_starts_when_it_gets_cheap():
    play = Play(num_requests=8, accepted=4, draft_s=0.00125)  # 8 tokens take 10 ms: arithmetic decides
    play.run(100)
    last = play.run(400)
    assert sum(length > 0 for length in last) <= 10
    play.draft_s = 0.0001
    play.run(1500)
    assert sum(play.run(50)) > 500


def test_a_fixed_length_is_kept_whatever_happens():
    play = Play(accepted=0, draft_s=0.01)
    play.speculator = AdaptiveSpeculator(ModelProposer(), max_draft_tokens=3, is_adaptive=False)
    assert play.run(30) == [3] * 30


def test_limits_and_room_are_kept():
    speculator = AdaptiveSpeculator(ModelProposer(), max_draft_tokens=5, is_adaptive=False)
    requests = [a_request(f"r{i}", [1, 2]) for i in range(4)]
    drafts = speculator.propose(requests, [0, 1, 9, 9], num_base_tokens=4, max_tokens=7)
    lengths = [0 if draft is None else draft.num_tokens for draft in drafts]
    assert lengths[0] == 0
    assert lengths[1] <= 1
    assert sum(lengths) == 7
    assert speculator.propose(requests, [9] * 4, num_base_tokens=4, max_tokens=0) == [None] * 4


def test_look_up_drafts_only_what_it_finds():
    speculator = AdaptiveSpeculator(NgramProposer(min_length=2, max_length=4), max_draft_tokens=3)
    requests = [a_request("repeats", [1, 2, 3, 4, 5, 1, 2]), a_request("does not", [1, 2, 3, 4, 5])]
    drafts = speculator.propose(requests, [9, 9], num_base_tokens=2, max_tokens=64)
    assert drafts[1] is None
    assert drafts[0] is not None
    assert list(drafts[0].token_ids or ()) == [3, 4, 5][: drafts[0].num_tokens]
    speculator.forget(RequestId("repeats"))
    speculator.forget(RequestId("never seen"))


def test_the_same_life_gives_the_same_drafts():
    first, second = (Play(num_requests=3, accepted=2, draft_s=0.001) for _ in range(2))
    assert first.run(300) == second.run(300)


class TypedPlay:
    """One request whose tokens are given, with look-up that finds a wrong draft at every token until `turn`, then a
    right one. `fixed_s`: what a step with any drafts takes more.
    """

    def __init__(self, *, fixed_s: float = 0.0) -> None:
        self.speculator = AdaptiveSpeculator(Foretelling(self), max_draft_tokens=4)
        self.request = a_request("r", [1, 2, 3])
        self.is_right = False
        self.fixed_s = fixed_s

    def run(self, num_steps: int) -> int:
        """Number of steps with drafts."""
        num_drafting = 0
        for _ in range(num_steps):
            (draft,) = self.speculator.propose([self.request], [100], num_base_tokens=1, max_tokens=64)
            num_drafts = 0 if draft is None else draft.num_tokens
            accepted = num_drafts if self.is_right else 0
            if num_drafts:
                self.speculator.note_verified(self.request.request_id, num_drafts, accepted)
                num_drafting += 1
            self.request.token_ids.extend([7] * (1 + accepted))
            step_time_s = 0.01 + (self.fixed_s if num_drafts else 0.0)
            self.speculator.note_step(num_base_tokens=1, num_draft_tokens=num_drafts, step_time_s=step_time_s)
        return num_drafting


class Foretelling:
    """Drafts of sevens where they are right, of eights where they are not."""

    def __init__(self, play: TypedPlay) -> None:
        self._play = play

    def offer(self, request: Request, max_tokens: int) -> Offer:
        token = 7 if self._play.is_right else 8
        return Offer(Draft(max_tokens, [token] * max_tokens), 2)

    def forget(self, request_id: RequestId) -> None:
        pass


def test_drafts_that_were_not_made_teach_as_well_as_those_that_were():
    play = TypedPlay(fixed_s=0.005)
    play.run(40)
    assert play.run(200) == 0
    play.is_right = True
    assert play.run(40) > 20


def test_drafts_of_many_steps_lose_little_where_any_draft_costs_much():
    play = TypedPlay(fixed_s=0.04)
    play.is_right = True
    play.run(40)
    assert play.run(500) <= 8
