"""Requests held back in the router, given out so that each tenant gets its share of the tokens.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI'24): what a tenant is served is
added to its counter, an output token counting as two; the next request is of the tenant with the smallest one. Who is
back after a pause starts at the smallest counter of those that wait, so that being away earns no credit.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

OUTPUT_TOKEN_WEIGHT = 2


class FairQueue(Generic[T]):
    """First come, first served within a tenant."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[int, T]]] = {}
        self._served: dict[str, int] = {}
        self._num_pushed = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def push(self, tenant: str, item: T) -> None:
        if tenant not in self._waiting:
            floor = min((self._served.get(other, 0) for other in self._waiting), default=None)
            if floor is not None:
                self._served[tenant] = max(self._served.get(tenant, 0), floor)
            self._waiting[tenant] = deque()
        self._num_pushed += 1
        self._waiting[tenant].append((self._num_pushed, item))

    def pop(self) -> T:
        """The next request: the least served tenant's, of equal ones the one that has waited longest."""
        tenant = min(self._waiting, key=lambda name: (self._served.get(name, 0), self._waiting[name][0][0]))
        _, item = self._waiting[tenant].popleft()
        if not self._waiting[tenant]:
            del self._waiting[tenant]
        return item

    def charge(self, tenant: str, *, num_prompt_tokens: int = 0, num_output_tokens: int = 0) -> None:
        """Count what the tenant is served."""
        tokens = num_prompt_tokens + OUTPUT_TOKEN_WEIGHT * num_output_tokens
        self._served[tenant] = self._served.get(tenant, 0) + tokens

    def served_tokens(self, tenant: str) -> int:
        return self._served.get(tenant, 0)
