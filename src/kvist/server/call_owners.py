"""Remembers who made which call, as long as calls can be explained."""

from __future__ import annotations

from collections import OrderedDict

from kvist.core.request import KeyDomain
from kvist.metrics.timelines import MAX_TIMELINES


class CallOwners:
    """Which caller used which call id lately, so that nobody is told of another's requests."""

    def __init__(self) -> None:
        self._domains: OrderedDict[str, set[KeyDomain]] = OrderedDict()

    def note(self, call_id: str, domain: KeyDomain) -> None:
        self._domains.setdefault(call_id, set()).add(domain)
        if len(self._domains) > MAX_TIMELINES:
            self._domains.popitem(last=False)

    def is_only(self, call_id: str, domain: KeyDomain) -> bool:
        """Whether `domain` used the id and nobody else did."""
        return self._domains.get(call_id) == {domain}
