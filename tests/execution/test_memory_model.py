"""The memory table: what decides the pool, and that its figures are those of the real arrays."""

from __future__ import annotations

import pytest

from kvist.config.cache_config import CacheConfig
from kvist.core.errors import ConfigError
from kvist.execution.memory_model import PROCESS_BYTES, memory_table
from kvist.models.registry import read_model
from kvist.weights.checkpoint import open_checkpoint

PER_TOKEN = 2 * 2 * 2 * 16 * 4  # K and V, layers, heads, head size, float32


@pytest.fixture
def spec(tiny_model):
    return read_model(open_checkpoint(tiny_model("llama"))).spec


def table(spec, *, executor="reference", max_num_seqs=4, max_model_len=None, free_bytes=1 << 40, **cache):
    return memory_table(
        spec,
        CacheConfig(**cache),
        executor=executor,
        max_num_batched_tokens=256,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        free_bytes=free_bytes,
    )


def test_the_pool_is_what_all_requests_can_use_if_memory_is_plenty(spec):
    sized = table(spec)
    assert (sized.num_blocks, sized.num_blocks_by) == (4 * 4096 // 16, "max_num_seqs x max_model_len")
    assert table(spec, max_model_len=100).num_blocks == 25
    assert table(spec, max_model_len=10**9).num_blocks == sized.num_blocks


def test_the_pool_is_a_quarter_of_the_free_memory_if_that_is_less(spec):
    num_blocks = (1 << 30) // (16 * PER_TOKEN)
    sized = table(spec, free_bytes=4 << 30, max_num_seqs=100_000)
    assert (sized.num_blocks, sized.num_blocks_by) == (num_blocks, "a quarter of the free memory")
    assert sized.kv_pool_bytes == num_blocks * 16 * PER_TOKEN


def test_the_pool_leaves_room_for_weights_workspace_and_the_process(spec):
    plenty = table(spec)
    others = plenty.weight_bytes + plenty.workspace_bytes + PROCESS_BYTES
    sized = table(spec, free_bytes=others + 10 * 16 * PER_TOKEN + 5)
    assert (sized.num_blocks, sized.num_blocks_by) == (10, "the memory left by all else")
    with pytest.raises(ConfigError, match="MiB of the process itself"):
        table(spec, free_bytes=others)


@pytest.mark.parametrize(
    ("cache", "num_blocks"),
    [
        ({"num_blocks": 7, "kv_cache_bytes": 1 << 30}, 7),
        ({"max_total_tokens": 100}, 7),
        ({"kv_cache_bytes": 16 * PER_TOKEN * 9 + 1}, 9),
        ({"kv_cache_bytes": 16 * PER_TOKEN * 9 + 1, "kv_cache_dtype": "float16"}, 18),
        ({"max_total_tokens": 100, "block_size": 32}, 4),
    ],
)
def test_an_explicit_size_wins(spec, cache, num_blocks):
    assert table(spec, free_bytes=0, **cache).num_blocks == num_blocks


def test_a_pool_too_small_names_the_flag_and_a_value_that_fits(spec):
    with pytest.raises(ConfigError, match=f"kv-cache-bytes to {2 * 16 * PER_TOKEN}"):
        table(spec, kv_cache_bytes=16 * PER_TOKEN)
    with pytest.raises(ConfigError, match=rf"pool \(by kv_cache_bytes\) holds 0 blocks of {16 * PER_TOKEN} bytes"):
        table(spec, kv_cache_bytes=1)
    with pytest.raises(ConfigError, match="0 MiB of free memory for"):
        table(spec, free_bytes=100)


def test_weights_and_kv_figures_are_those_of_the_arrays(spec, tiny_executor):
    executor, sized = tiny_executor("llama", num_blocks=11), table(spec, num_blocks=11)
    weights = [
        *executor._runner._weights.shared.values(),
        *(w for layer in executor._runner._weights.layers for w in layer.values()),
    ]
    assert sized.weight_bytes == sum(weight.nbytes for weight in weights)
    assert sized.kv_pool_bytes == executor._runner._kv.data.nbytes
    assert sized.total_bytes == sized.weight_bytes + sized.workspace_bytes + sized.kv_pool_bytes


def test_workspace_grows_with_the_token_budget(spec):
    small, large = (
        memory_table(
            spec,
            CacheConfig(),
            executor="reference",
            max_num_batched_tokens=budget,
            max_num_seqs=1,
            max_model_len=None,
            free_bytes=1 << 30,
        ).workspace_bytes
        for budget in (16, 4096)
    )
    assert small < large < 64 << 20


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3", "mixtral"])
def test_native_figures_are_about_those_of_the_plan(tiny_model, tiny_executor, architecture):
    pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")
    spec = read_model(open_checkpoint(tiny_model(architecture, "q8_0"))).spec
    executor, sized = tiny_executor(architecture, "q8_0", executor="native"), table(spec, executor="native")
    assert sized.kv_bytes_per_token * 2 == table(spec).kv_bytes_per_token  # float16 instead of float32
    assert 0.9 < sized.weight_bytes / executor.weight_bytes <= 1.0  # without the padding to whole tiles
    assert 0.8 < sized.workspace_bytes / executor.workspace_bytes < 1.5


def test_int8_needs_a_byte_a_number_and_a_scale_per_token_and_head(spec):
    sized = table(spec, kv_cache_dtype="int8")
    assert sized.kv_bytes_per_token == 2 * spec.num_layers * spec.num_kv_heads * (spec.head_dim + 4)
