"""One run of the kernel benchmark: a model's plan on each instruction set that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvist.bench.ceilings import Ceilings, higher, measure_ceilings
from kvist.bench.kernels import MAX_FILL_TOKENS, Case, KernelTime, Setting, fill_kv, rated, time_attention, time_linears
from kvist.config.engine_config import EngineConfig
from kvist.core.errors import ConfigError
from kvist.execution.kv_dtype import KVDtype, kv_dtype
from kvist.execution.native import _native
from kvist.execution.native.load_weights import load_packed_weights
from kvist.execution.native.runner import NativeRunner
from kvist.execution.native.self_test import trusted_isa
from kvist.execution.threads import granted_cores
from kvist.models.registry import read_model
from kvist.weights.checkpoint import Checkpoint

ATTENTION_SHAPES = ((1, 1), (32, 1), (1, 128))  # requests, and tokens of each: decodes and a prefill chunk
MAX_KV_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernels:
    """What one instruction set's kernels took. left_out: attention cases whose KV would be larger than MAX_KV_BYTES."""

    num_threads: int
    kv_dtype: str
    ceilings: Ceilings
    kernels: tuple[KernelTime, ...]
    left_out: tuple[Case, ...]


def choose_isas(asked: str) -> list[str]:
    """The kernels that `asked` names: a comma-separated list, "all", or "auto" for those that an engine would use.

    Raises ConfigError for names that this processor or build lacks.
    """
    there = _native.isas()
    if asked == "auto":
        return [trusted_isa()]
    names = there if asked == "all" else asked.split(",")
    for name in names:
        if name not in there:
            raise ConfigError(f"--isa {name}: this processor has kernels for {', '.join(there)}")
    return names


def time_kernels(
    checkpoint: Checkpoint, config: EngineConfig, *, isas: Sequence[str], rows: Sequence[int], contexts: Sequence[int]
) -> Iterator[TimedKernels]:
    """Load the weights once and time all cases on each of `isas` in turn."""
    model = read_model(checkpoint)
    dtype = kv_dtype(config.cache.kv_cache_dtype, "native")
    num_threads = config.executor.num_threads or granted_cores()
    head_dim = model.spec.head_dim
    per_token = model.spec.kv_bytes_per_token(dtype.vector_bytes(head_dim) / head_dim)
    attention = [
        Case(num_requests=requests, num_tokens=tokens, context=context)
        for context in contexts
        for requests, tokens in ATTENTION_SHAPES
        if tokens <= context
    ]
    left_out = [case for case in attention if case.num_kv_tokens * per_token > MAX_KV_BYTES]
    attention = [case for case in attention if case not in left_out]
    weights = load_packed_weights(checkpoint, model, num_threads=num_threads)
    num_kv_tokens = max([*(case.num_kv_tokens for case in attention), config.cache.block_size])
    for isa in isas:
        dtype = kv_dtype(config.cache.kv_cache_dtype, "native", isa=isa, head_dim=head_dim)
        runner = NativeRunner(
            model,
            weights,
            num_blocks=-(-num_kv_tokens // config.cache.block_size) + max(case.num_requests for case in attention),
            block_size=config.cache.block_size,
            dtype=dtype,
            has_integer_attention=config.executor.attention_dtype == "int8",
            max_num_tokens=max([MAX_FILL_TOKENS, *rows, *(case.num_rows for case in attention)]),
            max_num_rows=max([*rows, *(case.num_requests for case in attention)]),
            num_threads=num_threads,
            isa=isa,
        )
        pool = _native.ThreadPool(num_threads)
        before = measure_ceilings(isa, pool, resident_bytes=runner.weight_bytes)
        setting = Setting(
            spec=model.spec,
            kv_vector_bytes=dtype.vector_bytes(head_dim),
            attention_products=_attention_products(config, dtype, isa, head_dim),
            linear_products="bf16" if runner.activation_dtype == "bfloat16" else "int8",
        )
        fill_kv(runner, num_kv_tokens)
        kernels = [kernel for count in rows for kernel in time_linears(runner, setting, count)]
        kernels += [kernel for case in attention for kernel in time_attention(runner, setting, case)]
        runner.close()
        ceilings = higher(before, measure_ceilings(isa, pool, resident_bytes=before.resident_bytes))
        yield TimedKernels(
            num_threads=num_threads,
            kv_dtype=dtype.name,
            ceilings=ceilings,
            kernels=tuple(rated(kernel, ceilings) for kernel in kernels),
            left_out=tuple(left_out),
        )


def _attention_products(config: EngineConfig, dtype: KVDtype, isa: str, head_dim: int) -> str:
    if config.executor.attention_dtype == "int8":
        return "int8"
    is_natural = dtype == kv_dtype("auto", "native", isa=isa, head_dim=head_dim)
    return "bf16" if dtype.is_paired and is_natural else "fp32"
