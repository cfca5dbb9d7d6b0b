"""How likely the next drafted token is accepted, learned from what became of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping

FIRST_GUESS = 0.5  # until anything was verified
PRIOR_WEIGHT = 2.0  # tokens that the experience of all requests is worth beside a request's own
REQUEST_DECAY = 0.8  # per verified draft
ENGINE_DECAY = 0.98


class _Share:
    """Accepted of tried tokens, the older ones fading."""

    __slots__ = ("accepted", "tried")

    def __init__(self, accepted: float, tried: float) -> None:
        self.accepted = accepted
        self.tried = tried

    def add(self, num_accepted: int, num_tried: int, decay: float) -> None:
        self.accepted = self.accepted * decay + num_accepted
        self.tried = self.tried * decay + num_tried


class Acceptance:
    """Chance that a drafted token is accepted, given that those before it were. One per request, or of all requests.

    strength: what the proposer says of its draft, such as the length of a match; each is followed by itself.
    """

    def __init__(self, prior: Acceptance | None = None) -> None:
        self._prior = prior
        self._decay = ENGINE_DECAY if prior is None else REQUEST_DECAY
        self._shares: dict[int, _Share] = {}

    @property
    def shares(self) -> Mapping[int, _Share]:
        return self._shares

    def chance(self, strength: int) -> float:
        """In (0, 1)."""
        expected = FIRST_GUESS if self._prior is None else self._prior.chance(strength)
        share = self._shares.get(strength)
        if share is None:
            return expected
        return (share.accepted + PRIOR_WEIGHT * expected) / (share.tried + PRIOR_WEIGHT)

    def note(self, strength: int, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """A draft was verified. Tokens after the first refused one say nothing."""
        num_tried = min(num_accepted_tokens + 1, num_draft_tokens)
        share = self._shares.setdefault(strength, _Share(0.0, 0.0))
        share.add(num_accepted_tokens, num_tried, self._decay)
        if self._prior is not None:
            self._prior.note(strength, num_draft_tokens, num_accepted_tokens)
