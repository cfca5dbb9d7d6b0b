"""What speculation proposes for one request in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Draft(NamedTuple):
    """Tokens that may follow a request's known ones. token_ids None: the executor's draft model proposes them."""

    num_tokens: int
    token_ids: Sequence[int] | None = None

    def cut(self, num_tokens: int) -> Draft:
        """The first `num_tokens` of it."""
        return Draft(num_tokens, None if self.token_ids is None else self.token_ids[:num_tokens])
