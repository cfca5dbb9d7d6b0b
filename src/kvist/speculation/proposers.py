"""Where drafts come from."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kvist.core.draft import Draft
from kvist.core.request import Request, RequestId
from kvist.speculation.ngram_index import NgramIndex


class Offer(NamedTuple):
    """A draft that could be made. strength: how well founded it is, on the proposer's own scale."""

    draft: Draft
    strength: int


class Proposer(Protocol):
    """Offers drafts for requests whose last token is known."""

    def offer(self, request: Request, max_tokens: int) -> Offer | None:
        """Up to `max_tokens` tokens (at least 1) to follow the request's; None if there is nothing to go by."""
        ...

    def forget(self, request_id: RequestId) -> None:
        """The request has ended."""
        ...


class NgramProposer:
    """Prompt look-up: what followed the last few tokens when they occurred before in the same request.

    The strength is the number of tokens that matched.
    """

    def __init__(self, *, min_length: int, max_length: int) -> None:
        self._min_length = min_length
        self._max_length = max_length
        self._indices: dict[RequestId, NgramIndex] = {}

    def offer(self, request: Request, max_tokens: int) -> Offer | None:
        index = self._indices.get(request.request_id)
        if index is None:
            index = NgramIndex(min_length=self._min_length, max_length=self._max_length)
            self._indices[request.request_id] = index
        index.extend(request.token_ids)
        found = index.find(request.token_ids, max_tokens)
        return None if found is None else Offer(Draft(max_tokens, found.token_ids), found.match_length)

    def forget(self, request_id: RequestId) -> None:
        self._indices.pop(request_id, None)


class ModelProposer:
    """Leaves the tokens to the executor's draft model, which can always propose."""

    def offer(self, request: Request, max_tokens: int) -> Offer:
        return Offer(Draft(max_tokens), 0)

    def forget(self, request_id: RequestId) -> None:
        pass
