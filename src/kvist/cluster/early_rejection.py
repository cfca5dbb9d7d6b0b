"""Refusing a request that would miss its target, before work is spent on it (Mooncake, section on overload).

The load of a phase is its predicted latency over its target; above 1 the request is refused. What "predicted" means for
decoding tells the ways apart: who decodes now (`early`), or who will decode when this prompt is computed (`predicted`).
The first lags behind by a prefill and makes the cluster swing between too much and too little; the second does not.
"""

from __future__ import annotations

from kvist.cluster.cluster_state import ReplicaState
from kvist.cluster.predictions import Predictor

MIN_ENDED = 16  # until so many requests have ended nothing is refused: predictions rest on nothing yet
MIN_RETRY_AFTER_S = 1.0


def late_by(predicted_s: float, target_s: float | None) -> float:
    """Seconds by which a target is missed; 0 if it is met or there is none."""
    return 0.0 if target_s is None else max(predicted_s - target_s, 0.0)


def current_step_s(replica: ReplicaState, num_tokens: int, predictor: Predictor) -> float:
    """The decode step with one more request of `num_tokens` tokens, beside those that decode now."""
    rows = [work.num_tokens for work in replica.decodes.values() if work.has_started]
    return predictor.decode_step_s(replica.spec, len(rows) + 1, sum(rows) + num_tokens)


def coming_step_s(
    replica: ReplicaState, num_tokens: int, predictor: Predictor, *, at_s: float, decode_time_s: float
) -> float:
    """The same at `at_s`, when those that decode now and began long enough before have ended, and others have begun.

    decode_time_s: how long each request is taken to decode.
    """
    rows = [
        work.num_tokens for work in replica.decodes.values() if work.starts_s <= at_s < work.starts_s + decode_time_s
    ]
    return predictor.decode_step_s(replica.spec, len(rows) + 1, sum(rows) + num_tokens)
