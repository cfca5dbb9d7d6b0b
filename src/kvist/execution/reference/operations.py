"""The operations of models/ops.py, computed at once in NumPy: the oracle for every faster executor.

Handles are the arrays themselves: activations [num_tokens, width] in float32, weights in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvist.core.model_spec import LayerSpec
from kvist.execution.kv_storage import KVStorage
from kvist.execution.reference.attention import attend
from kvist.execution.rope_frequencies import rope_frequencies
from kvist.execution.step_batch import Chunk, StepBatch
from kvist.execution.threads import MatrixProducts
from kvist.models.ops import Split

Array = NDArray[np.float32]

MAX_LOGITS = 1 << 22  # logits held at once (16 MB): their rows are computed in tiles


class NumpyOperations:
    """Runs one step's operations. `take_logits` gets tiles of (indices into logit_rows, logits), in order.

    logit_rows: the rows of the batch whose logits are wanted. finite_rows: set by `logits`, whether each row of the
    batch came through with finite numbers.
    """

    def __init__(
        self,
        batch: StepBatch,
        kv: KVStorage,
        products: MatrixProducts,
        logit_rows: NDArray[np.int64],
        take_logits: Callable[[range, Array], None],
    ) -> None:
        self._batch = batch
        self._kv = kv
        self._products = products
        self._logit_rows = logit_rows
        self._take_logits = take_logits
        self._rotations: dict[LayerSpec, tuple[Array, Array]] = {}
        self.finite_rows: NDArray[np.bool_] = np.ones(batch.num_tokens, np.bool_)

    def embed(self, table: Array, *, scale: float) -> Array:
        rows: Array = table[np.array(self._batch.token_ids)]
        return rows if scale == 1.0 else rows * np.float32(scale)

    def rms_norm(self, x: Array, weight: Array, *, eps: float, head_dim: int | None = None) -> Array:
        parts = x if head_dim is None else x.reshape(len(x), -1, head_dim)
        mean_square = np.square(parts).mean(axis=-1, keepdims=True)
        normed: Array = parts / np.sqrt(mean_square + np.float32(eps)) * weight
        return normed.reshape(x.shape)

    def linear(self, x: Array, weight: Array, *, bias: Array | None = None, split: Split) -> Array:
        out = self._products.multiply(x, weight)
        if bias is not None:
            out += bias
        return out

    def rope(
        self,
        x: Array,
        layer: LayerSpec,
        *,
        head_dim: int,
        interleaved: bool,
        frequency_divisors: Array | None = None,
    ) -> Array:
        cos, sin = self._rotation(layer, head_dim, frequency_divisors)
        heads = x.reshape(len(x), -1, head_dim)
        half = head_dim // 2
        first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
        a, b = heads[:, :, first], heads[:, :, second]
        out = np.empty_like(heads)
        out[:, :, first] = a * cos - b * sin
        out[:, :, second] = b * cos + a * sin
        return out.reshape(x.shape)

    def _rotation(self, layer: LayerSpec, head_dim: int, divisors: Array | None) -> tuple[Array, Array]:
        """Cosine and sine for each token, [num_tokens, 1, head_dim / 2]; the same for all layers of one kind."""
        if layer not in self._rotations:
            frequencies = rope_frequencies(layer, head_dim, divisors)
            angles = self._batch.positions.astype(np.float32)[:, None, None] * frequencies
            self._rotations[layer] = np.cos(angles), np.sin(angles)
        return self._rotations[layer]

    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        layer_index: int,
        layer: LayerSpec,
        scale: float,
        softcap: float | None,
    ) -> Array:
        batch = self._batch
        kept = batch.num_kept_tokens
        keys, values = self._kv_heads(k), self._kv_heads(v)
        self._kv.write(layer_index, batch.write_block_ids, batch.write_slots, keys[:kept], values[:kept])
        queries = q.reshape(len(q), -1, keys.shape[2])
        out = np.empty_like(q)
        for chunk in batch.chunks:
            first_block = self._first_visible_block(chunk, layer.sliding_window)
            first_key = first_block * self._kv.block_size
            blocks = np.array(chunk.block_ids[first_block : -(-chunk.end // self._kv.block_size)], np.int64)
            seen_keys, seen_values = self._kv.read(layer_index, blocks)
            num_keys = chunk.end - first_key
            out[chunk.rows] = attend(
                queries[chunk.rows],
                seen_keys[:, :, :num_keys],
                seen_values[:, :num_keys],
                first_query=chunk.start,
                first_key=first_key,
                window=layer.sliding_window,
                scale=scale,
                softcap=softcap,
            )
        for chunk in batch.padding:  # costs what real tokens cost, but leaves no trace in the pool
            out[chunk.rows] = attend(
                queries[chunk.rows],
                keys[chunk.rows].transpose(1, 2, 0),
                values[chunk.rows].transpose(1, 0, 2),
                first_query=0,
                first_key=0,
                window=layer.sliding_window,
                scale=scale,
                softcap=softcap,
            )
        return out

    def _kv_heads(self, x: Array) -> Array:
        return x.reshape(len(x), self._kv.num_kv_heads, self._kv.head_dim)

    def _first_visible_block(self, chunk: Chunk, window: int | None) -> int:
        return 0 if window is None else max(0, chunk.start - window + 1) // self._kv.block_size

    def gated_activation(self, gate: Array, up: Array, *, kind: Literal["silu", "gelu_tanh"]) -> Array:
        return _activation(gate, kind) * up

    def mixture_of_experts(  # noqa: PLR0913 - the operation's own parameters
        self,
        x: Array,
        *,
        router: Array,
        gate: Array,
        up: Array,
        down: Array,
        num_experts_per_token: int,
        normalize_top_k: bool,
        kind: Literal["silu", "gelu_tanh"],
    ) -> Array:
        scores = x @ router.T
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        chosen = np.argsort(-shares, axis=1, kind="stable")[:, :num_experts_per_token]  # equals: lowest expert first
        chosen_shares = np.take_along_axis(shares, chosen, axis=1)
        if normalize_top_k:
            chosen_shares /= chosen_shares.sum(axis=1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(len(router)):
            rows, places = np.nonzero(chosen == expert)
            if len(rows):
                part = x[rows]
                opened = _activation(self._products.multiply(part, gate[expert]), kind)
                hidden = opened * self._products.multiply(part, up[expert])
                out[rows] += self._products.multiply(hidden, down[expert]) * chosen_shares[rows, places][:, None]
        return out

    def add(self, x: Array, y: Array) -> Array:
        return x + y

    def logits(self, x: Array, weight: Array, *, softcap: float | None) -> None:
        np.isfinite(x).all(axis=1, out=self.finite_rows)
        tile = max(1, MAX_LOGITS // len(weight))
        for first in range(0, len(self._logit_rows), tile):
            rows = self._logit_rows[first : first + tile]
            out = self._products.multiply(x[rows], weight)
            if softcap is not None:
                out = np.tanh(out / np.float32(softcap)) * np.float32(softcap)
            self.finite_rows[rows] &= np.isfinite(out.max(axis=1)) & np.isfinite(out.min(axis=1))
            self._take_logits(range(first, first + len(rows)), out)


def _activation(x: Array, kind: Literal["silu", "gelu_tanh"]) -> Array:
    out: Array
    if kind == "silu":
        out = x / (1 + np.exp(-x))
    else:
        cubic = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
        out = np.float32(0.5) * x * (1 + np.tanh(cubic))
    return out
