"""Decides step by step which requests get drafts, and how long ones: none where they would not pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.core.draft import Draft
from kvist.core.request import Request, RequestId
from kvist.speculation.acceptance import Acceptance
from kvist.speculation.draft_lengths import LARGEST_CHANCE, MARGIN, choose_lengths
from kvist.speculation.draft_price import DraftPrice, Price
from kvist.speculation.proposers import Offer, Proposer

FIRST_PROBE_INTERVAL = 8  # offers declined between two tries; doubles with each try that does not change the mind
LONGEST_PROBE_INTERVAL = 128
PROBE_TOKENS = 2
STEPS_BETWEEN_PLAIN_ONES = 64  # a step without drafts now and then keeps the comparison honest


class ProbeTimer:
    """Says when to try again what was given up: ever more rarely, until it pays."""

    def __init__(self) -> None:
        self._num_declined = 0
        self._interval = FIRST_PROBE_INTERVAL

    def decline(self) -> bool:
        """One more chance passed by. Returns whether to try instead."""
        self._num_declined += 1
        if self._num_declined < self._interval:
            return False
        self._num_declined = 0
        self._interval = min(2 * self._interval, LONGEST_PROBE_INTERVAL)
        return True

    def reset(self) -> None:
        self._num_declined = 0
        self._interval = FIRST_PROBE_INTERVAL


@dataclass(frozen=True, slots=True)
class _Declined:
    """A draft that was not made. token_id: its first token, which would have come at `place` of the request."""

    token_id: int
    place: int
    strength: int


@dataclass(slots=True, eq=False)
class _Followed:
    """What is known of one request. strength: of its draft that is being verified."""

    acceptance: Acceptance
    probe: ProbeTimer
    strength: int = 0
    declined: _Declined | None = None

    def learn_from_declined(self, request: Request) -> None:
        """What came in place of a draft that was not made says whether it would have been accepted: for nothing."""
        declined, self.declined = self.declined, None
        if declined is not None and declined.place < len(request.token_ids):
            is_right = request.token_ids[declined.place] == declined.token_id
            self.acceptance.note(declined.strength, 1, int(is_right))


class AdaptiveSpeculator:
    """Implements scheduler.drafting.Speculator over any proposer.

    max_draft_tokens: longest draft of one request in one step. is_adaptive: False drafts as much as that whatever it
    costs. The same requests, results and step times give the same drafts.
    """

    def __init__(self, proposer: Proposer, *, max_draft_tokens: int, is_adaptive: bool = True) -> None:
        self._proposer = proposer
        self._max_draft_tokens = max_draft_tokens
        self._is_adaptive = is_adaptive
        self._acceptance = Acceptance()
        self._price = DraftPrice()
        self._probe = ProbeTimer()
        self._requests: dict[RequestId, _Followed] = {}
        self._num_drafting_steps = 0  # since the last plain one

    def propose(
        self, requests: Sequence[Request], limits: Sequence[int], *, num_base_tokens: int, max_tokens: int
    ) -> list[Draft | None]:
        """As `Speculator.propose`."""
        drafts: list[Draft | None] = [None] * len(requests)
        if max_tokens <= 0 or not requests:
            return drafts
        price = self._price.at(num_base_tokens)
        num_most = self._max_draft_tokens
        is_probe = self._is_adaptive and not _could_pay(price, min(num_most * len(requests), max_tokens))
        if self._is_adaptive and (self._is_plain_step(num_base_tokens) or (is_probe and not self._probe.decline())):
            return drafts
        if is_probe:
            requests, num_most = requests[:1], PROBE_TOKENS
        rows, offers = self._offers(requests, [min(limit, num_most, max_tokens) for limit in limits])
        followed = [self._follow(requests[row], offer) for row, offer in zip(rows, offers, strict=True)]
        if self._is_adaptive:
            lengths = self._lengths(offers, followed, price, num_base_tokens, max_tokens, is_probe=is_probe)
        else:
            lengths = choose_lengths(
                [1.0] * len(offers),
                [offer.draft.num_tokens for offer in offers],
                price=0.0,
                num_base_tokens=num_base_tokens,
                max_tokens=max_tokens,
            )
        for row, offer, each, length in zip(rows, offers, followed, lengths, strict=True):
            if length:
                drafts[row] = offer.draft.cut(length)
            elif offer.draft.token_ids:
                each.declined = _Declined(offer.draft.token_ids[0], len(requests[row].token_ids), offer.strength)
        return drafts

    def note_verified(self, request_id: RequestId, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """As `Speculator.note_verified`."""
        followed = self._requests.get(request_id)
        if followed is not None:
            followed.acceptance.note(followed.strength, num_draft_tokens, num_accepted_tokens)

    def note_step(self, *, num_base_tokens: int, num_draft_tokens: int, step_time_s: float) -> None:
        """As `Speculator.note_step`."""
        self._price.note(num_base_tokens=num_base_tokens, num_draft_tokens=num_draft_tokens, step_time_s=step_time_s)
        self._num_drafting_steps = self._num_drafting_steps + 1 if num_draft_tokens else 0

    def forget(self, request_id: RequestId) -> None:
        """As `Speculator.forget`."""
        self._requests.pop(request_id, None)
        self._proposer.forget(request_id)

    def _is_plain_step(self, num_base_tokens: int) -> bool:
        """Whether to leave out drafts to learn what the step takes without: every second time until that is known."""
        known = self._price.is_known(num_base_tokens)
        return self._num_drafting_steps >= (STEPS_BETWEEN_PLAIN_ONES if known else 1)

    def _offers(self, requests: Sequence[Request], limits: Sequence[int]) -> tuple[list[int], list[Offer]]:
        """Places in `requests` that there is an offer for, and the offers."""
        rows, offers = [], []
        for row, request in enumerate(requests):
            offer = self._proposer.offer(request, limits[row]) if limits[row] > 0 else None
            if offer is not None:
                rows.append(row)
                offers.append(offer)
        return rows, offers

    def _follow(self, request: Request, offer: Offer) -> _Followed:
        followed = self._requests.get(request.request_id)
        if followed is None:
            followed = self._requests[request.request_id] = _Followed(Acceptance(self._acceptance), ProbeTimer())
        followed.learn_from_declined(request)
        followed.strength = offer.strength
        return followed

    def _lengths(
        self,
        offers: Sequence[Offer],
        followed: Sequence[_Followed],
        price: Price,
        num_base_tokens: int,
        max_tokens: int,
        *,
        is_probe: bool,
    ) -> list[int]:
        limits = [offer.draft.num_tokens for offer in offers]
        chances = [each.acceptance.chance(each.strength) for each in followed]
        if is_probe:
            lengths = [min(PROBE_TOKENS, limit) for limit in limits]
        else:
            lengths = choose_lengths(
                chances,
                limits,
                price=price.per_draft,
                fixed_price=price.fixed,
                num_base_tokens=num_base_tokens,
                max_tokens=max_tokens,
            )
        room = max_tokens - sum(lengths)
        for i, each in enumerate(followed):
            if lengths[i]:
                each.probe.reset()
            elif offers[i].draft.token_ids is None and room >= PROBE_TOKENS and each.probe.decline():
                lengths[i] = min(PROBE_TOKENS, limits[i])
                room -= lengths[i]
        if not is_probe and any(lengths):
            self._probe.reset()
        return lengths


def _could_pay(price: Price, num_drafts: int) -> bool:
    """Whether so many drafts would be worth their price if nearly all of them were accepted."""
    return MARGIN * price.of(num_drafts) < LARGEST_CHANCE * num_drafts
