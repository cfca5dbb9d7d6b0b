"""A speculator that knows what will be sampled, and is wrong now and then on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.core.draft import Draft
from kvist.core.request import Request, RequestId
from kvist.simulator.simulated_executor import SampleToken


class OracleSpeculator:
    """Drafts the right tokens, `num_tokens` for each request, but a wrong one at every `wrong_every`-th position.

    Keeps what it was told: num_drafted, num_accepted, steps.
    """

    def __init__(self, sample: SampleToken, *, num_tokens: int, wrong_every: int = 7) -> None:
        self._sample = sample
        self._num_tokens = num_tokens
        self._wrong_every = wrong_every
        self.num_drafted = self.num_accepted = 0
        self.steps: list[tuple[int, int]] = []
        self.forgotten: list[RequestId] = []

    def propose(
        self, requests: Sequence[Request], limits: Sequence[int], *, num_base_tokens: int, max_tokens: int
    ) -> list[Draft | None]:
        drafts: list[Draft | None] = []
        for request, limit in zip(requests, limits, strict=True):
            num_tokens = min(self._num_tokens, limit, max_tokens)
            max_tokens -= max(num_tokens, 0)
            drafts.append(Draft(num_tokens, self._tokens(request, num_tokens)) if num_tokens > 0 else None)
        return drafts

    def _tokens(self, request: Request, num_tokens: int) -> list[int]:
        new = request.new
        positions = range(request.num_tokens, request.num_tokens + num_tokens)
        return [
            self._sample(new.sampling, new.sample_index, position) + (position % self._wrong_every == 0)
            for position in positions
        ]

    def note_verified(self, request_id: RequestId, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        self.num_drafted += num_draft_tokens
        self.num_accepted += num_accepted_tokens

    def note_step(self, *, num_base_tokens: int, num_draft_tokens: int, step_time_s: float) -> None:
        self.steps.append((num_base_tokens, num_draft_tokens))

    def forget(self, request_id: RequestId) -> None:
        self.forgotten.append(request_id)
