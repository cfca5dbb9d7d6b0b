"""Follows one sample of a request: the engine's events go in, text and its end come out. No waiting, no engine."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.core.request import FinishReason
from kvist.core.request_events import Finished, PromptScored, RequestEvent, Scheduled, TokensSampled
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_result import TokenLogprobs
from kvist.runtime.generation_types import PositionLogprobs, SampleDelta, TokenLogprob
from kvist.tokenization.output_text import OutputText
from kvist.tokenization.stop_strings import StopStrings
from kvist.tokenization.tokenizer import Tokenizer


class SampleText:
    """Text, counts and finish of one sample. After `is_finished` nothing more is taken."""

    def __init__(
        self,
        index: int,
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        stop: StopStrings | None,
        *,
        strip_leading_space: bool = False,
    ) -> None:
        self.is_finished = False
        self.num_cached_tokens = 0
        self._is_scheduled = False
        self._index = index
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[PositionLogprobs] = []
        self._text: OutputText | None = None
        if sampling.detokenize:
            self._text = OutputText(
                tokenizer,
                stop=stop,
                min_tokens=sampling.min_tokens,
                include_stop_str_in_output=sampling.include_stop_str_in_output,
                skip_special_tokens=sampling.skip_special_tokens,
                strip_leading_space=strip_leading_space,
            )

    def take_prompt_logprobs(self) -> list[PositionLogprobs] | None:
        """Return what was scored since the last call."""
        scored, self._prompt_logprobs = self._prompt_logprobs, []
        return scored or None

    def advance(self, events: Sequence[RequestEvent]) -> SampleDelta | None:
        """Take the next events; None if they change nothing that a client sees."""
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        finished: Finished | None = None
        for event in events:
            if type(event) is TokensSampled:
                token_ids += event.token_ids
                logprobs += event.logprobs or ()
            elif type(event) is Finished:
                finished = event
            else:
                self._note(event)
        if not token_ids and finished is None:
            return None
        delta = SampleDelta(self._index, "", token_ids)
        if self._text is not None:
            self._add_text(delta, self._text, finished)
        if finished is not None and delta.finish_reason is None:
            self._finish(delta, finished)
        if logprobs:
            kept = logprobs[: len(delta.token_ids)]  # a stop string may have cut the rest off
            delta.logprobs = [position_logprobs(entry, self._tokenizer) for entry in kept]
        self.is_finished = delta.finish_reason is not None
        return delta

    def _note(self, event: RequestEvent) -> None:
        if isinstance(event, Scheduled):
            if not self._is_scheduled:  # what it reads again after a preemption is no saving
                self.num_cached_tokens = event.num_cached_tokens
                self._is_scheduled = True
        elif isinstance(event, PromptScored):
            self._prompt_logprobs += [position_logprobs(entry, self._tokenizer) for entry in event.logprobs]

    def _add_text(self, delta: SampleDelta, text: OutputText, finished: Finished | None) -> None:
        """Detokenize the delta's tokens; end at a stop string, cutting the tokens after it."""
        token_ids = delta.token_ids
        if (
            finished is not None
            and finished.stop_token_id is not None
            and not self._sampling.include_stop_str_in_output
        ):
            token_ids = token_ids[:-1]  # a token that only says "stop" is not text
        num_tokens_before = text.num_tokens
        delta.text = text.append(token_ids)
        if finished is not None and text.stop_string is None:
            delta.text += text.finish()
        if text.stop_string is not None:
            delta.finish_reason = FinishReason.STOP
            delta.stop_reason = text.stop_string
            delta.token_ids = delta.token_ids[: text.num_tokens - num_tokens_before]

    def _finish(self, delta: SampleDelta, finished: Finished) -> None:
        delta.finish_reason = finished.reason
        delta.error = finished.error
        if finished.stop_token_id in self._sampling.stop_token_ids:
            delta.stop_reason = finished.stop_token_id


def position_logprobs(entry: TokenLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    """`entry` with the tokens' text."""
    return PositionLogprobs(
        _token_logprob(entry.token_id, entry.logprob, tokenizer, entry.rank),
        [
            _token_logprob(token_id, logprob, tokenizer, rank)
            for rank, (token_id, logprob) in enumerate(
                zip(entry.top_token_ids, entry.top_logprobs, strict=True), start=1
            )
        ],
    )


def _token_logprob(token_id: int, logprob: float, tokenizer: Tokenizer, rank: int) -> TokenLogprob:
    return TokenLogprob(token_id, tokenizer.token_text(token_id), tokenizer.token_bytes(token_id), logprob, rank)
