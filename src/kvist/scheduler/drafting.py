"""What the scheduler asks of speculation. Implemented by kvist.speculation; None in its place is no speculation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvist.core.draft import Draft
from kvist.core.request import Request, RequestId


class Speculator(Protocol):
    """Proposes drafts and learns from what became of them. Reads requests and changes nothing in them."""

    def propose(
        self, requests: Sequence[Request], limits: Sequence[int], *, num_base_tokens: int, max_tokens: int
    ) -> list[Draft | None]:
        """Propose tokens for requests that decode in the step being planned, at most `limits[i]` for each.

        num_base_tokens: what the step computes without drafts. max_tokens: room for all drafts together.
        """
        ...

    def note_verified(self, request_id: RequestId, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """The step that carried the last proposal of the request has been computed."""
        ...

    def note_step(self, *, num_base_tokens: int, num_draft_tokens: int, step_time_s: float) -> None:
        """A step has been computed; without drafts too, for comparison."""
        ...

    def forget(self, request_id: RequestId) -> None:
        """The request has ended. No effect if nothing is known of it."""
        ...
