"""The stages between a row's raw logits and its distribution. Each is a plain function of one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import InvalidRequestError
from kvist.core.sampling_params import SamplingParams
from kvist.execution.logits import LogitRow


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


def adjust_logits(logits: NDArray[np.floating], row: RowHistory) -> NDArray[np.floating]:
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


def _penalise(logits: NDArray[np.floating], row: RowHistory) -> None:
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


def kept_tokens(logits: LogitRow, params: SamplingParams) -> tuple[NDArray[np.int64] | None, NDArray[np.float64]]:
    """Token ids in ascending order (None: the whole vocabulary) and their probabilities after temperature.

    What top_k, top_p and min_p cut is left out or has 0. They need not add up to one.
    Raises InvalidRequestError if no token is left.
    """
    ids, values = None, logits.values
    if 0 < params.top_k < len(values):
        best_ids, best_logits = logits.top(params.top_k)
        order = best_ids.argsort()
        ids, values = best_ids[order], best_logits[order]
    best = values.max()
    if best == -np.inf:
        raise InvalidRequestError("the request's options forbid every token")
    probabilities: NDArray[np.float64] = np.exp((values.astype(np.float64) - best) / params.temperature)  # the best: 1
    if params.top_p < 1.0:
        probabilities = _keep_best(probabilities, _nucleus_size(probabilities, params.top_p))
    if params.min_p > 0.0:
        probabilities[probabilities < params.min_p] = 0.0
    return ids, probabilities


def _nucleus_size(probabilities: NDArray[np.float64], top_p: float) -> int:
    """How many of the best tokens it takes for their share to reach `top_p`; at least one."""
    reached = np.cumsum(np.sort(probabilities)[::-1])
    return int(np.searchsorted(reached, top_p * reached[-1], side="left")) + 1


def _keep_best(probabilities: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """All but the `count` largest set to zero; of equals on the edge the lowest ids stay. Sorts nothing."""
    if count >= len(probabilities):
        return probabilities
    edge = np.partition(probabilities, len(probabilities) - count)[len(probabilities) - count]
    above = probabilities > edge
    at_edge = np.flatnonzero(probabilities == edge)[: count - np.count_nonzero(above)]
    kept = np.where(above, probabilities, 0.0)
    kept[at_edge] = edge
    return kept


def _in_vocabulary(ids: Sequence[int], logits: NDArray[np.floating], param: str) -> NDArray[np.int64]:
    array = np.asarray(ids, np.int64)
    outside = array[(array < 0) | (array >= len(logits))]
    if len(outside):
        raise InvalidRequestError(f"{param}: {outside[0]} is no token of a vocabulary of {len(logits)}", param=param)
    return array
