"""The stages between a row's raw logits and its distribution. Each is a plain function of one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import InvalidRequestError
from kvist.core.sampling_params import SamplingParams
from kvist.execution.logits import LogitRow

FIRST_LOOK = 128  # best tokens among which a nucleus is looked for at first


class RowHistory(Protocol):
    """What the stages read of a row; see sampler.SamplingRow."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def output_position(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def token_mask(self) -> NDArray[np.bool_] | None: ...


def is_adjusted(row: RowHistory) -> bool:
    """Whether `adjust_logits` would change anything."""
    params = row.params
    return (
        bool(params.logit_bias)
        or params.allowed_token_ids is not None
        or row.token_mask is not None
        or 0 <= row.output_position < params.min_tokens
        or has_penalties(params)
    )


def has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def adjust_logits(logits: NDArray[np.float32], row: RowHistory) -> NDArray[np.float32]:
    """Bias, forbid and penalise, in the documented order. Returns a new row; -inf is forbidden.

    Raises InvalidRequestError if an option names a token outside the vocabulary.
    """
    params = row.params
    out = logits.copy()
    if params.logit_bias:
        ids = _in_vocabulary(list(params.logit_bias), out, "logit_bias")
        out[ids] += np.array(list(params.logit_bias.values()), np.float32)
    if params.allowed_token_ids is not None:
        allowed = _in_vocabulary(params.allowed_token_ids, out, "allowed_token_ids")
        kept = np.full_like(out, -np.inf)
        kept[allowed] = out[allowed]
        out = kept
    if row.token_mask is not None:
        out[~row.token_mask] = -np.inf
    if 0 <= row.output_position < params.min_tokens:
        stops = (*params.stop_token_ids, *row.eos_token_ids)
        out[_in_vocabulary(stops, out, "stop_token_ids")] = -np.inf
    if has_penalties(params):
        _penalise(out, row)
    return out


def _penalise(logits: NDArray[np.float32], row: RowHistory) -> None:
    """Repetition counts prompt and output, presence and frequency only the output, as the field does."""
    params = row.params
    history = np.asarray(row.token_ids, np.int64)
    if params.repetition_penalty != 1.0:
        seen = np.unique(history)
        values, penalty = logits[seen], np.float32(params.repetition_penalty)
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    ids, counts = np.unique(history[row.num_prompt_tokens :], return_counts=True)
    frequency, presence = np.float32(params.frequency_penalty), np.float32(params.presence_penalty)
    logits[ids] -= frequency * counts.astype(np.float32) + presence


def kept_tokens(logits: LogitRow, params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """What top_k, top_p and min_p leave: token ids in ascending order and their probabilities after temperature.

    The probabilities need not add up to one.
    """
    if 0 < params.top_k < len(logits.values):
        ids, weights = _best(logits, params.top_k, params.temperature)
        if params.top_p < 1.0:
            count = _nucleus_size(weights, params.top_p * weights.sum())
            ids, weights = ids[:count], weights[:count]
    elif params.top_p < 1.0:
        ids, weights = _nucleus(logits, params)
    else:
        ids, weights = _best(logits, len(logits.values), params.temperature)
    kept = weights >= max(params.min_p, np.finfo(np.float64).tiny)
    ids, weights = ids[kept], weights[kept]
    order = ids.argsort()
    return ids[order], weights[order]


def _best(logits: LogitRow, count: int, temperature: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids of the `count` best tokens, best first, and their weights, the best one's being 1."""
    ids, values = logits.top(count)
    weights: NDArray[np.float64] = np.exp((values.astype(np.float64) - values[0]) / temperature)
    return ids, weights


def _nucleus(logits: LogitRow, params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The fewest best tokens whose share reaches top_p. As a rule they are few: they are looked for among few first."""
    share = params.top_p * logits.weight_sum(params.temperature)
    num_tokens = len(logits.values)
    count = min(FIRST_LOOK, num_tokens)
    while True:
        ids, weights = _best(logits, count, params.temperature)
        size = _nucleus_size(weights, share)
        if size <= count or count == num_tokens:
            return ids[:size], weights[:size]
        count = min(16 * count, num_tokens)


def _nucleus_size(weights: NDArray[np.float64], share: float) -> int:
    """How many of `weights`, largest first, it takes to reach `share`; at least one, one too many if they do not."""
    return int(np.searchsorted(np.cumsum(weights), share, side="left")) + 1


def _in_vocabulary(ids: Sequence[int], logits: NDArray[np.float32], param: str) -> NDArray[np.int64]:
    array = np.asarray(ids, np.int64)
    outside = array[(array < 0) | (array >= len(logits))]
    if len(outside):
        raise InvalidRequestError(f"{param}: {outside[0]} is no token of a vocabulary of {len(logits)}", param=param)
    return array
