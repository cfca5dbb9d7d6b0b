"""Chooses the next token of each row from its logits. Knows nothing of steps, blocks or who else is in the batch.

A row is processed in this order, each stage seeing what the one before left (execution/logit_adjustments.py):
logit_bias, allowed tokens, min_tokens, penalties; temperature, top_k, top_p, min_p; one draw from what remains.
Equal logits are ordered by token id, lowest first: greedy, top_k and top_p are defined exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import InvalidRequestError
from kvist.core.random_numbers import uniform
from kvist.core.sampling_params import SamplingParams
from kvist.core.step_result import TokenLogprobs
from kvist.execution.logit_adjustments import adjust_logits, has_penalties, is_adjusted, kept_tokens
from kvist.execution.logits import LogitRow, draw

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

    def sample(self, logits: LogitRow, row: SamplingRow) -> Sampled:
        """Draw one token. A row whose options leave none, or name one outside the vocabulary, gets an error instead."""
        try:
            adjusted = _adjusted(logits, row)
            if adjusted.values[adjusted.best] == -np.inf:
                raise InvalidRequestError("the request's options forbid every token")
            token_id = adjusted.best if row.is_greedy else _draw(adjusted, row)
            if row.params.logprobs is None:
                return Sampled(token_id)
            scores = _processed_scores(adjusted, row) if self._processed else logits
            return Sampled(token_id, token_logprobs(scores, token_id, row.params.logprobs))
        except InvalidRequestError as error:
            return Sampled(None, error=str(error))

    def score(self, logits: LogitRow, row: SamplingRow, token_id: int, num_top: int) -> TokenLogprobs:
        """Log-probabilities of a prompt's `token_id`, as if `row` had to choose it."""
        scores = _processed_scores(_adjusted(logits, row), row) if self._processed else logits
        return token_logprobs(scores, token_id, num_top)


def _adjusted(logits: LogitRow, row: SamplingRow) -> LogitRow:
    return logits.with_values(adjust_logits(logits.values, row)) if is_adjusted(row) else logits


def _draw(logits: LogitRow, row: SamplingRow) -> int:
    params = row.params
    u = uniform(row.seed, row.sample_index, row.output_position)
    if params.top_p == 1.0 and not 0 < params.top_k < len(logits.values):
        return logits.draw(params.temperature, params.min_p, u)
    ids, probabilities = kept_tokens(logits, params)
    return int(ids[draw(probabilities, u)])


def takes_best(params: SamplingParams, output_position: int) -> bool:
    """Whether the token is the largest logit's, whatever else the row holds, and nobody asked for log-probabilities."""
    return (
        params.temperature < GREEDY_BELOW
        and params.logprobs is None
        and not params.logit_bias
        and params.allowed_token_ids is None
        and output_position >= params.min_tokens
        and not has_penalties(params)
    )


def _processed_scores(adjusted: LogitRow, row: SamplingRow) -> LogitRow:
    """Logarithms of what the row's token is drawn from; -inf for what was cut."""
    if row.is_greedy:
        return adjusted
    ids, probabilities = kept_tokens(adjusted, row.params)
    scores = np.full(len(adjusted.values), -np.inf, np.float32)
    scores[ids] = np.log(probabilities)
    return adjusted.with_values(scores)


def token_logprobs(scores: LogitRow, token_id: int, num_top: int) -> TokenLogprobs:
    """Natural-log probabilities from one row of logits; tokens that cannot occur are left out of the best."""
    values = scores.values
    total = float(values[scores.best]) + math.log(scores.weight_sum(1.0))
    ids, logits = scores.top(num_top)
    possible = logits > -np.inf
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(values[token_id]) - total,
        rank=1 + int(np.count_nonzero(values > values[token_id])),
        top_token_ids=ids[possible].tolist(),
        top_logprobs=(logits[possible].astype(np.float64) - total).tolist(),
    )
