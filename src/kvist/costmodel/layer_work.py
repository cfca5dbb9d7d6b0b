"""Counts of floating point operations and bytes that one rank has for one layer of a model. No times here."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.core.model_spec import ModelSpec
from kvist.costmodel.model_size import attention_parameters, expert_parameters

ACTIVATION_BYTES = 2.0
ELEMENTWISE_PASSES = 8  # over the hidden state: two norms, two additions, each read and written
FEED_FORWARD_PASSES = 3  # over the inner state: gate and up read, their product written


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """Per rank and layer. `weights`: parameters of the linear parts that all tokens pass; `expert_weights`: of one
    expert, 0 without experts. element_bytes: of activations per token. pair_flops: per query-key pair.
    kv_bytes: of keys and values per token of context. all_reduce_bytes: per token, of both sums of a layer."""

    weights: float
    expert_weights: float
    num_experts: int
    num_experts_per_token: int
    element_bytes: float
    pair_flops: float
    kv_bytes: float
    queries_per_kv_head: float
    all_reduce_bytes: float

    def active_experts(self, num_tokens: int) -> float:
        """Experts that `num_tokens` tokens are expected to reach together, each choosing by itself."""
        share = self.num_experts_per_token / self.num_experts
        return self.num_experts * (1.0 - (1.0 - share) ** num_tokens)


def layer_work(spec: ModelSpec, *, tensor_parallel_size: int, kv_element_bytes: float) -> LayerWork:
    """What one of `tensor_parallel_size` ranks does. KV heads are copied where ranks outnumber them."""
    ranks = tensor_parallel_size
    moe = spec.moe
    q_heads = spec.num_q_heads / ranks
    kv_heads = max(1.0, spec.num_kv_heads / ranks)
    active = moe.num_experts_per_token if moe else 1
    dense = attention_parameters(spec) + (0 if moe else expert_parameters(spec))
    inner = FEED_FORWARD_PASSES * active * spec.intermediate_size / ranks
    return LayerWork(
        weights=dense / ranks,
        expert_weights=expert_parameters(spec) / ranks if moe else 0.0,
        num_experts=moe.num_experts if moe else 1,
        num_experts_per_token=active,
        element_bytes=ACTIVATION_BYTES * (ELEMENTWISE_PASSES * spec.hidden_size + inner),
        pair_flops=4.0 * q_heads * spec.head_dim,
        kv_bytes=2.0 * kv_heads * spec.head_dim * kv_element_bytes,
        queries_per_kv_head=q_heads / kv_heads,
        all_reduce_bytes=2.0 * ACTIVATION_BYTES * spec.hidden_size,
    )
