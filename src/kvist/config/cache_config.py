"""The KV pool and the prefix tree over it."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.config.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    block_size: int = option(16, help="tokens per KV block; a multiple of 16", aliases=("--page-size",), low=16)
    kv_cache_bytes: int | None = option(
        None,
        help="bytes of the KV pool; default: a quarter of the free memory, at most what max_num_seqs can use",
        aliases=("--kv-cache-memory-bytes",),
        low=1,
        unit="bytes",
    )
    num_blocks: int | None = option(
        None, help="blocks of the KV pool, instead of kv_cache_bytes", aliases=("--num-gpu-blocks-override",), low=2
    )
    max_total_tokens: int | None = option(
        None, help="tokens of the KV pool, instead of kv_cache_bytes", aliases=("--max-total-num-tokens",), low=32
    )
    kv_cache_dtype: str = option(
        "auto",
        help="number format of K and V; auto: bfloat16 where attention runs on a matrix unit, else float16, float32 on "
        "the reference executor; int8: a scale per token and head, half the memory of 16 bits",
        aliases=("-ctk",),
        choices=("auto", "float32", "float16", "bfloat16", "int8"),
    )
    preallocate_kv_cache: bool = option(
        False,
        help="take the KV pool's memory from the system at the start, in the background, instead of as it is used: new "
        "prompts find it there, and it cannot run out later",
    )
    enable_prefix_caching: bool = option(
        True, help="reuse KV of shared prefixes through the prefix tree", off_aliases=("--disable-radix-cache",)
    )
    eviction_policy: str = option(
        "lru",
        help="which unused leaf of the tree goes first",
        aliases=("--radix-eviction-policy",),
        choices=("lru", "lfu", "priority"),
    )
