"""Causal attention of one chunk to everything before and in it, computed plainly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

MAX_SCORES = 1 << 22  # scores held at once (16 MB): long chunks are cut into runs of queries


def attend(  # noqa: PLR0913 - the operation's own parameters
    query: Array,
    keys: Array,
    values: Array,
    *,
    first_query: int,
    first_key: int,
    window: int | None,
    scale: float,
    softcap: float | None,
) -> Array:
    """softmax(scale * query @ keys) @ values, each query seeing the keys at its position and before.

    query [num_queries, num_q_heads, head_dim] at positions first_query onwards; keys [num_kv_heads, head_dim,
    num_keys] and values [num_kv_heads, num_keys, head_dim] at positions first_key onwards. A window of w shows a
    query the w last positions, its own among them. Returns [num_queries, num_q_heads * head_dim].
    """
    num_queries, num_q_heads, head_dim = query.shape
    num_kv_heads, _, num_keys = keys.shape
    group = num_q_heads // num_kv_heads
    run = max(1, MAX_SCORES // (num_q_heads * num_keys))
    out = np.empty((num_queries, num_q_heads * head_dim), np.float32)
    for first in range(0, num_queries, run):
        part = query[first : first + run]
        # [queries, kv heads, group, head_dim] -> [kv heads, group * queries, head_dim]
        grouped = part.reshape(len(part), num_kv_heads, group, head_dim).transpose(1, 2, 0, 3)
        scores = (grouped.reshape(num_kv_heads, -1, head_dim) @ keys).reshape(num_kv_heads, group, len(part), num_keys)
        scores *= np.float32(scale)
        if softcap is not None:
            scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
        positions = np.arange(first_query + first, first_query + first + len(part))
        hidden = _hidden(positions, np.arange(first_key, first_key + num_keys), window)
        if hidden is not None:
            scores[:, :, hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = scores.reshape(num_kv_heads, -1, num_keys) @ values
        mixed = mixed.reshape(num_kv_heads, group, len(part), head_dim).transpose(2, 0, 1, 3)
        out[first : first + run] = mixed.reshape(len(part), -1)
    return out


def _hidden(queries: NDArray[np.int64], keys: NDArray[np.int64], window: int | None) -> NDArray[np.bool_] | None:
    """Which key (second axis) each query does not see; None if all see all."""
    if keys[-1] <= queries[0] and (window is None or keys[0] > queries[-1] - window):
        return None
    hidden: NDArray[np.bool_] = keys[None, :] > queries[:, None]
    if window is not None:
        hidden |= keys[None, :] <= queries[:, None] - window
    return hidden
