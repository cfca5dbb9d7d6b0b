"""Finds where the last tokens of a sequence occurred before: prompt look-up. Knows nothing of requests."""

from __future__ import annotations

from array import array
from typing import NamedTuple

MAX_CANDIDATES = 16  # earlier places looked at in one search, the latest first
NOWHERE = -1


class Continuation(NamedTuple):
    """What followed the last `match_length` tokens when they occurred before."""

    token_ids: list[int]
    match_length: int


class NgramIndex:
    """An index over one growing sequence: a token costs one look-up in a table when it is added, never again.

    Each place is chained to the one before it that ends in the same `min_length` tokens (as in LZ77), and a search
    compares further backwards along the chain. min_length, max_length: shortest and longest match of interest.
    """

    def __init__(self, *, min_length: int, max_length: int) -> None:
        assert 1 <= min_length <= max_length
        self._min_length = min_length
        self._max_length = max_length
        self._latest: dict[bytes, int] = {}  # the last tokens -> the place after their latest occurrence
        self._previous: array[int] = array("i")  # place -> the place before it with the same last tokens

    def extend(self, token_ids: array[int]) -> None:
        """Take in the tokens that came since the last call: `token_ids` is the whole sequence."""
        packed = memoryview(token_ids).cast("B")
        width, size = self._min_length * token_ids.itemsize, token_ids.itemsize
        latest, previous = self._latest, self._previous
        for place in range(len(previous) + 1, len(token_ids) + 1):
            if place < self._min_length:
                previous.append(NOWHERE)
                continue
            end = place * size
            key = packed[end - width : end].tobytes()
            previous.append(latest.get(key, NOWHERE))
            latest[key] = place

    def find(self, token_ids: array[int], max_tokens: int) -> Continuation | None:
        """Return up to `max_tokens` tokens that followed the longest earlier match, the latest of equals.

        All of `token_ids` must have been taken in. A match that reaches into its own continuation repeats it, so a
        text of period p is foretold without end.
        """
        num_tokens = len(token_ids)
        best_place, best_length = NOWHERE, 0
        place = self._previous[num_tokens - 1] if num_tokens else NOWHERE
        for _ in range(MAX_CANDIDATES):
            if place == NOWHERE:
                break
            # Most places fail at the first token that would make them the longest.
            if best_length < place and token_ids[place - 1 - best_length] == token_ids[num_tokens - 1 - best_length]:
                length = self._match_length(token_ids, place)
                if length > best_length:
                    best_place, best_length = place, length
                    if length == self._max_length:
                        break
            place = self._previous[place - 1]
        if best_place == NOWHERE or max_tokens <= 0:
            return None
        period = num_tokens - best_place
        return Continuation([token_ids[best_place + i % period] for i in range(max_tokens)], best_length)

    def _match_length(self, token_ids: array[int], place: int) -> int:
        """How many tokens before `place` equal the last ones: min_length by the chain, max_length at most."""
        num_tokens, length = len(token_ids), self._min_length
        longest = min(self._max_length, place)
        while length < longest and token_ids[place - 1 - length] == token_ids[num_tokens - 1 - length]:
            length += 1
        return length
