"""One attention layer twice: the engine's own operation in tiles, and the baseline that materializes scores."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kvist.core.clock import Clock
from kvist.core.model_spec import ModelSpec
from kvist.execution.kv_dtype import kv_dtype
from kvist.execution.kv_storage import KVStorage
from kvist.execution.native import _native
from kvist.execution.native.packed_weights import KV_TYPES

BLOCK_SIZE = 16
STRIP = 32  # keys that the baseline lays out together
FLOAT_BYTES = 4
PASSES_OVER_FLOATS = (
    5  # a score is written, read for the largest, read again, written as a power and read to be divided
)
PASSES_OVER_WEIGHTS = 2  # a weight is written and read

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Heads:
    num_q: int
    num_kv: int
    head_dim: int

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, slots=True)
class Tokens:
    """q: [queries, q heads, head_dim] of the last tokens; k and v: [tokens, kv heads, head_dim] of all."""

    q: Floats
    k: Floats
    v: Floats

    @staticmethod
    def random(heads: Heads, *, num_tokens: int, num_queries: int, seed: int = 0) -> Tokens:
        random = np.random.default_rng(seed)
        return Tokens(
            random.standard_normal((num_queries, heads.num_q, heads.head_dim), np.float32),
            random.standard_normal((num_tokens, heads.num_kv, heads.head_dim), np.float32),
            random.standard_normal((num_tokens, heads.num_kv, heads.head_dim), np.float32),
        )


class TiledAttention:
    """The engine's operation, with rotation by nothing. `workspace_bytes`: what it needs beside its inputs."""

    def __init__(
        self, heads: Heads, *, isa: str, dtype: str, pool: _native.ThreadPool, num_tokens: int, num_queries: int
    ) -> None:
        stored = kv_dtype(dtype, "native")
        shape: Any = SimpleNamespace(num_layers=1, num_kv_heads=heads.num_kv, head_dim=heads.head_dim)
        num_blocks = -(-num_tokens // BLOCK_SIZE)
        self._heads = heads
        self._num_tokens = num_tokens
        self._storage = KVStorage(cast("ModelSpec", shape), num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=stored)
        self._plan = _native.Plan(isa, pool, num_queries, 4)
        width = (heads.num_q + 2 * heads.num_kv) * heads.head_dim
        self._qkv = self._plan.buffer(width)
        self._out = self._plan.buffer(heads.num_q * heads.head_dim)
        angles = self._plan.rope_angles([0.0] * (heads.head_dim // 2))
        half = heads.num_kv * BLOCK_SIZE * stored.vector_bytes(heads.head_dim)
        k_column = heads.num_q * heads.head_dim
        v_column = k_column + heads.num_kv * heads.head_dim
        before = self._plan.workspace_bytes
        self._plan.attention(
            self._qkv, 0, k_column, v_column, self._out, -1, 2 * half, 0, half, KV_TYPES[stored.name], BLOCK_SIZE,
            heads.num_q, heads.num_kv, heads.head_dim, 0, heads.scale, 0.0, angles, False,  # noqa: FBT003
        )  # fmt: skip
        self.workspace_bytes = self._plan.workspace_bytes - before
        self._table = np.arange(num_blocks, dtype=np.int32)

    def fill(self, tokens: Tokens) -> None:
        """Put K and V of all tokens but the queries' into the pool, and the queries' q, k and v into place."""
        num_queries = len(tokens.q)
        positions = np.arange(self._num_tokens)
        self._storage.write(0, positions // BLOCK_SIZE, positions % BLOCK_SIZE, tokens.k, tokens.v)
        flat = [each[-num_queries:].reshape(num_queries, -1) for each in (tokens.q, tokens.k, tokens.v)]
        self._plan.view(self._qkv)[:num_queries] = np.concatenate(flat, axis=1)

    def run(self, num_queries: int) -> tuple[Floats, float]:
        """Attend for the last `num_queries` tokens. Returns [queries, q heads, head_dim] and attention's seconds."""
        rows = np.array([[self._num_tokens - num_queries, num_queries, 0, 0]], np.int32)
        before = self._seconds()
        self._plan.replay(rows, self._table, np.zeros(num_queries, np.int32), self._storage.data, timed=True)
        out = self._plan.view(self._out)[:num_queries]
        return out.reshape(num_queries, self._heads.num_q, -1), self._seconds() - before

    def _seconds(self) -> float:
        """Attention's operations alone, without writing K and V."""
        return sum(seconds for name, seconds in self._plan.timings() if name.startswith("attention"))


class NaiveAttention:
    """The baseline: a matrix of scores per head, a pass that makes weights of it, a pass that uses them.

    Scores are float32; on the matrix unit weights are bfloat16, as the tiled kernels multiply them.
    """

    def __init__(
        self, heads: Heads, *, isa: str, pool: _native.ThreadPool, clock: Clock, num_tokens: int, num_queries: int
    ) -> None:
        row = -(-num_tokens // STRIP) * STRIP
        self._heads, self._isa, self._pool, self._clock = heads, isa, pool, clock
        self._scores = np.empty(heads.num_q * num_queries * row, np.float32)
        self._transposed = np.empty(heads.num_kv * heads.head_dim * row, np.float32)
        self._out = np.empty(num_queries * heads.num_q * heads.head_dim, np.float32)

    @property
    def workspace_bytes(self) -> int:
        """The matrix of scores; the keys as they are laid out stand for those that the engine's pool holds."""
        return self._scores.nbytes

    def fill(self, tokens: Tokens) -> None:
        """Lay the keys out, as the engine's pool holds them: the time of that does not count on either side."""
        self._attend(tokens, prepared=False)

    def run(self, tokens: Tokens) -> tuple[Floats, float]:
        """As TiledAttention.run."""
        begun_s = self._clock.now_s()
        self._attend(tokens, prepared=True)
        seconds = self._clock.now_s() - begun_s
        return self._out.reshape(len(tokens.q), self._heads.num_q, self._heads.head_dim), seconds

    def _attend(self, tokens: Tokens, *, prepared: bool) -> None:
        heads = self._heads
        _native.naive_attention(
            self._isa,
            self._pool,
            tokens.q.reshape(-1),
            tokens.k.reshape(-1),
            tokens.v.reshape(-1),
            self._transposed,
            self._scores,
            self._out,
            heads.num_q,
            heads.num_kv,
            heads.head_dim,
            heads.scale,
            prepared=prepared,
        )


def exact_attention(tokens: Tokens, heads: Heads) -> NDArray[np.float64]:
    """The same in float64, a head at a time."""
    num_queries, num_tokens = len(tokens.q), len(tokens.k)
    out = np.empty(tokens.q.shape, np.float64)
    hidden = np.arange(num_tokens) > np.arange(num_tokens - num_queries, num_tokens)[:, None]
    for head in range(heads.num_q):
        kv_head = head // (heads.num_q // heads.num_kv)
        scores = tokens.q[:, head].astype(np.float64) @ tokens.k[:, kv_head].T.astype(np.float64) * heads.scale
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights @ tokens.v[:, kv_head] / weights.sum(axis=1, keepdims=True)
    return out


def bytes_of_scores_moved(heads: Heads, *, num_tokens: int, num_queries: int, weight_bytes: int) -> int:
    """What the baseline writes and reads of scores: those that its queries see, in each of its passes.

    weight_bytes: of a weight that the softmax leaves for the product with the values.
    """
    first = num_tokens - num_queries
    pairs = num_queries * first + num_queries * (num_queries + 1) // 2
    return (PASSES_OVER_FLOATS * FLOAT_BYTES + PASSES_OVER_WEIGHTS * weight_bytes) * heads.num_q * pairs
