"""The operations that a model is written in.

A model file calls these on opaque handles and never looks at values, shapes of the batch or loop counts that
depend on data: the same code runs eagerly (NumPy oracle) and is recorded once into a plan (native executor).
`num_tokens` is the ragged batch of one step: all rows' chunks, one after another.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeVar

from kvist.core.model_spec import LayerSpec

T = TypeVar("T")  # an activation handle: [num_tokens, width]
W = TypeVar("W", contravariant=True)  # a weight handle, made by the executor from a name

Split = Literal["column", "row", "replicated"]  # how tensor parallelism cuts a linear's weight


class Operations(Protocol[T, W]):
    """Executed eagerly or recorded. Every handle is used in the order it was made."""

    def embed(self, table: W, *, scale: float) -> T:
        """Rows of `table` for the step's token ids, times `scale`: [num_tokens, hidden_size]."""
        ...

    def rms_norm(self, x: T, weight: W, *, eps: float, head_dim: int | None = None) -> T:
        """x / rms(x) * weight over the last axis, or within each head of `head_dim` (q/k norm)."""
        ...

    def linear(self, x: T, weight: W, *, bias: W | None = None, split: Split) -> T:
        """x @ weight.T + bias. `weight` is [out, in]. A row-split linear ends in an all-reduce (none at size 1)."""
        ...

    def rope(
        self, x: T, layer: LayerSpec, *, head_dim: int, interleaved: bool, frequency_divisors: W | None = None
    ) -> T:
        """Rotate each head of x by its token's position.

        interleaved: pairs are (2i, 2i+1), as in GGUF llama files; otherwise (i, i + head_dim/2).
        frequency_divisors: [head_dim / 2], divide the layer's frequencies; then `layer.rope_scaling` is None.
        """
        ...

    def attention(
        self, q: T, k: T, v: T, *, layer_index: int, layer: LayerSpec, scale: float, softcap: float | None
    ) -> T:
        """Write k and v into the rows' KV blocks of this layer, then attend causally to all that the blocks hold.

        K and V are rounded to the KV dtype, written, and read back, also the chunk's own. q is
        [num_tokens, num_q_heads * head_dim], k and v [num_tokens, num_kv_heads * head_dim]; the result is as q.
        Query head h reads KV head h // (num_q_heads / num_kv_heads).
        """
        ...

    def gated_activation(self, gate: T, up: T, *, kind: Literal["silu", "gelu_tanh"]) -> T:
        """activation(gate) * up."""
        ...

    def mixture_of_experts(  # noqa: PLR0913 - one operation, so that executors may fuse it
        self,
        x: T,
        *,
        router: W,
        gate: W,
        up: W,
        down: W,
        num_experts_per_token: int,
        normalize_top_k: bool,
        kind: Literal["silu", "gelu_tanh"],
    ) -> T:
        """Softmax-routed gated feed-forward; gate, up, down are stacked over experts: [experts, out, in].

        Experts are summed in expert order.
        """
        ...

    def add(self, x: T, y: T) -> T: ...

    def logits(self, x: T, weight: W, *, softcap: float | None) -> None:
        """Logits of the rows that sample (and of prompt positions to be scored): the end of the model."""
        ...
