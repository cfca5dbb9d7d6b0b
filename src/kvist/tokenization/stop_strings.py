"""Finds stop strings in text that arrives in pieces. Holds back only what may still become one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """A set of stop strings, compiled once a request (Aho and Corasick's automaton) and shared by its samples.

    A state is the longest suffix of the text so far that begins some stop string; its depth is that suffix' length.
    """

    __slots__ = ("depths", "fallbacks", "first_characters", "matches", "transitions")

    def __init__(self, stop: Sequence[str]) -> None:
        """Compile. Every string must be non-empty. Takes time and memory in the sum of their lengths."""
        self.transitions: list[dict[str, int]] = [{}]
        self.depths = [0]
        self.fallbacks = [0]
        self.matches: list[str | None] = [None]  # the longest stop string that ends in this state
        self.first_characters = frozenset(text[0] for text in stop)
        for text in stop:
            self._insert(text)
        self._link()

    def _insert(self, text: str) -> None:
        state = 0
        for character in text:
            following = self.transitions[state].get(character)
            if following is None:
                following = len(self.transitions)
                self.transitions[state][character] = following
                self.transitions.append({})
                self.depths.append(self.depths[state] + 1)
                self.fallbacks.append(0)
                self.matches.append(None)
            state = following
        self.matches[state] = text

    def _link(self) -> None:
        """Point each state to its longest proper suffix that is a state too, breadth first."""
        queue = deque(self.transitions[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self.transitions[state].items():
                queue.append(following)
                self.fallbacks[following] = self.step(self.fallbacks[state], character)
            if self.matches[state] is None:
                self.matches[state] = self.matches[self.fallbacks[state]]

    def step(self, state: int, character: str) -> int:
        """Return the state after `character`."""
        while True:
            following = self.transitions[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self.fallbacks[state]


class StopStringMatcher:
    """Follows one sample's text. The match that ends first wins; of those that end together, the longest.

    The released text is the same for every way of cutting the input.
    """

    __slots__ = ("_held", "_include", "_state", "_stop", "matched")

    def __init__(self, stop: StopStrings, *, include_in_output: bool = False) -> None:
        self._stop = stop
        self._include = include_in_output
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    @property
    def num_held_characters(self) -> int:
        return len(self._held)

    def push(self, text: str) -> str:
        """Take more text and return what is certain to be output. After a match: nothing, whatever comes."""
        if self.matched is not None:
            return ""
        stop = self._stop
        if not self._state and stop.first_characters.isdisjoint(text):
            return text
        state = self._state
        for position, character in enumerate(text):
            state = stop.step(state, character)
            matched = stop.matches[state]
            if matched is not None:
                return self._end(self._held + text[: position + 1], matched)
        self._state = state
        window = self._held + text
        num_certain = len(window) - stop.depths[state]
        self._held = window[num_certain:]
        return window[:num_certain]

    def flush(self) -> str:
        """Return what was held back; for the end of a text without a match."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _end(self, window: str, matched: str) -> str:
        self.matched = matched
        self._held = ""
        return window if self._include else window[: len(window) - len(matched)]
