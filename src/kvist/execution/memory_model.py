"""How much memory a model takes with a given configuration: one pure function for engine and `kvist inspect` alike."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.config.cache_config import CacheConfig
from kvist.core.errors import ConfigError
from kvist.core.model_spec import ModelSpec
from kvist.execution.choice import ExecutorName
from kvist.execution.kv_dtype import kv_dtype
from kvist.execution.reference.attention import MAX_SCORES
from kvist.execution.reference.operations import MAX_LOGITS

FLOAT32_BYTES = 4
MIN_BLOCKS = 2
NATIVE_PARTIALS_BYTES = 4 << 20  # attention over long contexts, split among threads
PROCESS_BYTES = 96 << 20  # the interpreter, its libraries and what requests hold outside the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """Bytes by purpose. `num_blocks_by` says in a few words what decided the size of the pool.

    A draft model's KV is in `kv_bytes_per_token` and its workspace in `workspace_bytes`.
    """

    executor: ExecutorName
    weight_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_block: int
    block_size: int
    num_blocks: int
    num_blocks_by: str
    draft_weight_bytes: int = 0

    @property
    def kv_pool_bytes(self) -> int:
        return self.num_blocks * self.kv_bytes_per_block

    @property
    def num_kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.draft_weight_bytes + self.workspace_bytes + self.kv_pool_bytes


def memory_table(  # noqa: PLR0913 - everything that takes memory
    spec: ModelSpec,
    cache: CacheConfig,
    *,
    executor: ExecutorName,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int | None,
    free_bytes: int,
    draft: tuple[ModelSpec, ExecutorName] | None = None,
) -> MemoryTable:
    """Size everything on `executor`. max_model_len None: what the model was trained for.

    free_bytes: memory that the system can give now. Without a size in `cache` the pool takes a quarter of it, at
    most what `max_num_seqs` requests of `max_model_len` tokens can use, and leaves room for all else. draft: a draft
    model, with as many blocks. Raises ConfigError if the pool holds too few blocks.
    """
    models = [(spec, executor)] if draft is None else [(spec, executor), draft]
    per_token = sum(_kv_bytes_per_token(each, cache, name) for each, name in models)
    per_block = per_token * cache.block_size
    length = min(max_model_len or spec.max_position, spec.max_position)
    weights = [_weight_bytes(each, name) for each, name in models]
    workspace = sum(_workspace_bytes(each, name, max_num_batched_tokens, length) for each, name in models)
    left_bytes = max(0, free_bytes - sum(weights) - workspace - PROCESS_BYTES)
    affordable = min((free_bytes // 4, "a quarter of the free memory"), (left_bytes, "the memory left by all else"))
    num_blocks, reason = _num_blocks(cache, per_block, max_num_seqs * length, affordable)
    if num_blocks < MIN_BLOCKS:
        raise ConfigError(
            f"the KV pool (by {reason}) holds {num_blocks} blocks of {per_block} bytes; at least {MIN_BLOCKS} are "
            f"needed. There are {free_bytes >> 20} MiB of free memory for {sum(weights) >> 20} MiB of weights, "
            f"{workspace >> 20} MiB of workspace (by --max-num-batched-tokens) and about {PROCESS_BYTES >> 20} MiB of "
            "the process itself. Free some, choose a smaller model, or set --kv-cache-bytes to "
            f"{MIN_BLOCKS * per_block} or more to try nevertheless"
        )
    return MemoryTable(
        executor=executor,
        weight_bytes=weights[0],
        workspace_bytes=workspace,
        kv_bytes_per_token=per_token,
        kv_bytes_per_block=per_block,
        block_size=cache.block_size,
        num_blocks=num_blocks,
        num_blocks_by=reason,
        draft_weight_bytes=sum(weights[1:]),
    )


def _weight_bytes(spec: ModelSpec, executor: ExecutorName) -> int:
    return (spec.weight_bytes or 0) if executor == "native" else (spec.num_parameters or 0) * FLOAT32_BYTES


def _workspace_bytes(spec: ModelSpec, executor: ExecutorName, max_num_batched_tokens: int, max_model_len: int) -> int:
    if executor == "native":
        return native_workspace_bytes(spec, max_num_batched_tokens)
    return workspace_bytes(spec, max_num_batched_tokens, max_model_len)


def _kv_bytes_per_token(spec: ModelSpec, cache: CacheConfig, executor: ExecutorName) -> int:
    vector_bytes = kv_dtype(cache.kv_cache_dtype, executor).vector_bytes(spec.head_dim)
    return round(spec.kv_bytes_per_token(vector_bytes / spec.head_dim))


def _num_blocks(cache: CacheConfig, per_block: int, usable_tokens: int, affordable: tuple[int, str]) -> tuple[int, str]:
    """Blocks, and what decided them. affordable: bytes, and why no more."""
    if cache.num_blocks is not None:
        return cache.num_blocks, "num_blocks"
    if cache.max_total_tokens is not None:
        return -(-cache.max_total_tokens // cache.block_size), "max_total_tokens"
    if cache.kv_cache_bytes is not None:
        return cache.kv_cache_bytes // per_block, "kv_cache_bytes"
    usable, num_affordable = -(-usable_tokens // cache.block_size), affordable[0] // per_block
    if usable <= num_affordable:
        return max(usable, MIN_BLOCKS), "max_num_seqs x max_model_len"
    return num_affordable, affordable[1]


def workspace_bytes(spec: ModelSpec, max_num_batched_tokens: int, max_model_len: int) -> int:
    """An upper bound of what one step holds besides weights and KV: the larger of its attention and feed-forward."""
    q_width, kv_width = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    stream = 3 * spec.hidden_size
    attention = 3 * q_width + 3 * kv_width
    feed_forward = 4 * spec.intermediate_size + spec.hidden_size
    per_token = stream + max(attention, feed_forward)
    gathered = 2 * 2 * kv_width * max_model_len  # one request's K and V of one layer, as read and as widened
    scores = 2 * max(MAX_SCORES, spec.num_q_heads * max_model_len)
    logits = 2 * max(MAX_LOGITS, spec.vocab_size)
    return FLOAT32_BYTES * (per_token * max_num_batched_tokens + gathered + max(scores, logits))


def native_workspace_bytes(spec: ModelSpec, max_num_batched_tokens: int) -> int:
    """About what the native plan's buffers take (the plan itself knows to the byte, once it is recorded)."""
    q_width, kv_width = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    residual = FLOAT32_BYTES * spec.hidden_size * max_num_batched_tokens
    per_row = spec.moe.num_experts_per_token if spec.moe else 1
    floats = spec.hidden_size + q_width + 2 * kv_width + 2 * per_row * spec.intermediate_size + spec.head_dim
    quantized = spec.hidden_size + q_width + per_row * spec.intermediate_size
    if spec.moe:
        floats += per_row * spec.hidden_size
        quantized += per_row * spec.hidden_size
    per_token = FLOAT32_BYTES * floats + 2 * quantized  # bfloat16; int8 rows with their scales take less
    logit_rows = max(1, min(max_num_batched_tokens, MAX_LOGITS // spec.vocab_size))
    logits = FLOAT32_BYTES * logit_rows * spec.vocab_size
    head = FLOAT32_BYTES * logit_rows * 2 * spec.hidden_size
    # Logits lie where all but the residual stream lay before.
    return residual + head + max(logits, per_token * max_num_batched_tokens + NATIVE_PARTIALS_BYTES)
