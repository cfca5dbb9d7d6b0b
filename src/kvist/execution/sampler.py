"""Chooses the next token of each row from its logits. Knows nothing of steps, blocks or who else is in the batch.

A row is processed in this order, each stage seeing what the one before left (execution/logit_adjustments.py):
logit_bias, allowed tokens, min_tokens, penalties; temperature, top_k, top_p, min_p; one draw from what remains.
Equal logits are ordered by token id, lowest first: greedy, top_k and top_p are defined exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import InvalidRequestError
from kvist.core.random_numbers import uniform
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_result import TokenLogprobs
from kvist.execution.logit_adjustments import adjust_logits, best_ids, is_adjusted, kept_probabilities

GREEDY_BELOW = 1e-5  # a temperature this small is greedy


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """All that decides one row's token besides its logits.

    token_ids: the tokens before it, prompt and output. token_mask: [vocab_size] of bool, False forbids (None: all).
    """

    params: SamplingParams
    token_ids: Sequence[int]
    num_prompt_tokens: int
    seed: int
    sample_index: int = 0
    eos_token_ids: tuple[int, ...] = ()
    token_mask: NDArray[np.bool_] | None = None

    @property
    def output_position(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class Sampled:
    """A row's token, with log-probabilities if its request asked; or why it has none."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    error: str | None = None


class Sampler:
    """Pure: the same logits and rows give the same tokens."""

    def __init__(self, *, processed_logprobs: bool) -> None:
        self._processed = processed_logprobs

    def sample(self, logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> list[Sampled]:
        """Draw one token per row. logits: [num_rows, vocab_size], left as they are.

        A row whose options leave no token, or name one outside the vocabulary, gets an error and no token.
        """
        best = logits.argmax(axis=1)  # the first of equals
        return [self._sample_row(logits[i], row, int(best[i])) for i, row in enumerate(rows)]

    def score(self, logits: NDArray[np.float32], row: SamplingRow, token_id: int, num_top: int) -> TokenLogprobs:
        """Log-probabilities of a prompt's `token_id`, as if `row` had to choose it."""
        if not self._processed:
            return token_logprobs(logits, token_id, num_top)
        return token_logprobs(self._processed_scores(logits, row), token_id, num_top)

    def _sample_row(self, logits: NDArray[np.float32], row: SamplingRow, best: int) -> Sampled:
        try:
            adjusted = adjust_logits(logits, row) if is_adjusted(row) else logits
            if row.is_greedy:
                token_id = best if adjusted is logits else int(adjusted.argmax())
                if adjusted[token_id] == -np.inf:
                    raise InvalidRequestError("the request's options forbid every token")
            else:
                probabilities = kept_probabilities(adjusted, row.params)
                token_id = draw(probabilities, uniform(row.seed, row.sample_index, row.output_position))
            if row.params.logprobs is None:
                return Sampled(token_id)
            scores = self._processed_scores(logits, row) if self._processed else logits
            return Sampled(token_id, token_logprobs(scores, token_id, row.params.logprobs))
        except InvalidRequestError as error:
            return Sampled(None, error=str(error))

    @staticmethod
    def _processed_scores(logits: NDArray[np.float32], row: SamplingRow) -> NDArray[np.floating]:
        adjusted = adjust_logits(logits, row) if is_adjusted(row) else logits
        if row.is_greedy:
            return adjusted
        with np.errstate(divide="ignore"):  # log 0 of a token that was cut is the -inf it should be
            return np.log(kept_probabilities(adjusted, row.params))


def draw(probabilities: NDArray[np.float64], u: float) -> int:
    """Inverse of the cumulative distribution in token order: the first id whose running sum exceeds u of the total."""
    cumulative = np.cumsum(probabilities)
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def token_logprobs(scores: NDArray[np.floating], token_id: int, num_top: int) -> TokenLogprobs:
    """Natural-log probabilities from one row of logits; tokens that cannot occur are left out of the best."""
    logits = scores.astype(np.float64)
    logits -= logits.max()
    logprobs = logits - np.log(np.exp(logits).sum())
    top = [int(i) for i in best_ids(logprobs, num_top) if logprobs[i] > -np.inf]
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(logprobs[token_id]),
        rank=1 + int(np.count_nonzero(logprobs > logprobs[token_id])),
        top_token_ids=top,
        top_logprobs=[float(logprobs[i]) for i in top],
    )
