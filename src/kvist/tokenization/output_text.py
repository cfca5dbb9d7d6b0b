"""One sample's output tokens turned into the text its client may see: detokenized, cut at stop strings."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kvist.tokenization.incremental_detokenizer import IncrementalDetokenizer
from kvist.tokenization.stop_strings import StopStringMatcher, StopStrings
from kvist.tokenization.tokenizer import Tokenizer


class OutputText:
    """Follows one sample. The texts of all `append` calls and `finish` joined are the same however tokens arrive.

    stop_string: the stop string that ended the text, or None so far.
    min_tokens: stop strings that end within so many tokens are just text.
    num_tokens: tokens taken, the one that completed the stop string included; later ones are surplus.
    num_text_tokens: tokens whose text, or its beginning, has been released: while streaming, how many logprobs may go
    out with the text; after a stop string, how many belong to it.
    """

    __slots__ = (
        "_detokenizer",
        "_matcher",
        "_min_tokens",
        "_num_characters",
        "_num_released",
        "_pending_starts",
        "num_text_tokens",
        "num_tokens",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: StopStrings | None = None,
        min_tokens: int = 0,
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        strip_leading_space: bool = False,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, strip_leading_space=strip_leading_space
        )
        self._matcher = None if stop is None else StopStringMatcher(stop, include_in_output=include_stop_str_in_output)
        self._min_tokens = min_tokens
        self._pending_starts: deque[int] = deque()  # where the text of each token begins that is not released yet
        self._num_characters = 0
        self._num_released = 0
        self.num_tokens = 0
        self.num_text_tokens = 0

    @property
    def stop_string(self) -> str | None:
        return None if self._matcher is None else self._matcher.matched

    def append(self, token_ids: Sequence[int]) -> str:
        """Take tokens up to the one that completes a stop string and return the text that is now certain."""
        if self._matcher is None:
            self.num_tokens += len(token_ids)
            self.num_text_tokens = self.num_tokens
            if len(token_ids) == 1:  # nearly always, while streaming
                return self._detokenizer.append(token_ids[0])
            return self._detokenizer.extend(token_ids)
        released = ""
        for token_id in token_ids:
            if self._matcher.matched is not None:
                break
            self.num_tokens += 1
            self._pending_starts.append(self._num_characters)
            text = self._detokenizer.append(token_id)
            released += self._push(self._matcher, text) if self.num_tokens >= self._min_tokens else self._pass_by(text)
        return released

    def finish(self) -> str:
        """Return what was held back, when no more tokens come; nothing after a stop string."""
        rest = self._detokenizer.finish()
        if self._matcher is None:
            return rest
        released = self._push(self._matcher, rest)
        if self._matcher.matched is None:
            released += self._matcher.flush()
            self.num_text_tokens = self.num_tokens
        return released

    def _pass_by(self, text: str) -> str:
        """Release text that the matcher is not to see: it holds nothing yet."""
        self._pending_starts.clear()
        self.num_text_tokens = self.num_tokens
        self._num_characters += len(text)
        self._num_released += len(text)
        return text

    def _push(self, matcher: StopStringMatcher, text: str) -> str:
        released = matcher.push(text)
        self._num_characters += len(text)
        self._num_released += len(released)
        nothing_held = matcher.matched is None and not matcher.num_held_characters
        while self._pending_starts and (nothing_held or self._pending_starts[0] < self._num_released):
            self._pending_starts.popleft()
            self.num_text_tokens += 1
        return released
