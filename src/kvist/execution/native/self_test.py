"""Checks an instruction set's kernels against their twins in plain C++ before any model trusts them."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kvist.core.errors import ConfigError
from kvist.execution.kv_dtype import KV_DTYPES
from kvist.execution.native import _native
from kvist.execution.native.packed_weights import KV_TYPES, QUANTIZED_FORMATS, pack_matrix
from kvist.execution.native.random_bits import RandomBits
from kvist.quantization.formats import FORMATS
from kvist.weights.tensor import Tensor

Array = NDArray[np.float32]

WIDTH = 256  # of activations: one block of the widest format
NUM_OUTPUTS = 40  # two tiles and a half
NUM_TOKENS = 19  # rows in full runs of 16, of 2 and alone
HEAD_DIM, NUM_Q_HEADS, NUM_KV_HEADS, BLOCK_SIZE = 32, 4, 2, 16
# A block holds a layer of each of these.
KV_FORMATS = ("float16", "bfloat16", "int8")
HALF_BYTES = {name: NUM_KV_HEADS * BLOCK_SIZE * KV_DTYPES[name].vector_bytes(HEAD_DIM) for name in KV_FORMATS}
BLOCK_BYTES = 2 * sum(HALF_BYTES.values())
# Where a block of each format keeps its half-precision scales; every other byte may be anything.
SCALE_OFFSETS = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}

log = logging.getLogger(__name__)


@cache
def trusted_isa() -> str:
    """The widest instruction set of this processor whose kernels give the bits of their twins in plain C++."""
    for isa in _native.isas():
        if isa == "portable" or _same(isa):
            return isa
        log.warning("the %s kernels differ from what they should compute on this processor and are not used", isa)
    return "portable"


def named_isa(name: str) -> str:
    """The instruction set that the option `name` means. Raises ConfigError for one that this processor lacks."""
    if name == "auto":
        return trusted_isa()
    if name not in _native.isas():
        raise ConfigError(f"--isa {name}: this processor has {', '.join(_native.isas())}; auto takes the first")
    return name


def _same(isa: str) -> bool:
    ours, plain = probe(isa, NUM_TOKENS), probe(_native.plain_twin(isa), NUM_TOKENS)
    return all(np.array_equal(ours[name], plain[name], equal_nan=True) for name in plain)


def random_matrix(name: str, num_outputs: int = NUM_OUTPUTS, width: int = WIDTH, seed: int = 0) -> Tensor:
    """A tensor of random bits in the format called `name`, with tame scales."""
    form, random = FORMATS[name], RandomBits(seed)
    shape = (num_outputs, width)
    if form.is_plain:
        rows = random.normal(*shape)
        bits = {
            "F32": rows.view(np.uint8),
            "F16": rows.astype(np.float16).view(np.uint8),
            "BF16": (rows.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
        }
        return Tensor(name=name, shape=shape, format=form, data=bits[name].reshape(-1))
    num_blocks = num_outputs * width // form.block_elements
    blocks = random.take(num_blocks * form.block_bytes).reshape(num_blocks, form.block_bytes)
    for offset in SCALE_OFFSETS.get(name, (0, 2)):
        scales = random.uniform(-0.01, 0.01, num_blocks).astype(np.float16)
        blocks[:, offset : offset + 2] = scales[:, None].view(np.uint8)
    return Tensor(name=name, shape=shape, format=form, data=blocks.reshape(-1))


def probe(isa: str, num_tokens: int, *, num_threads: int = 1) -> dict[str, Array]:
    """The results of all kinds of kernels on fixed random numbers, by name: [num_tokens, ...] each."""
    plan = _native.Plan(isa, _native.ThreadPool(num_threads), max(num_tokens, 1), 2)
    random = RandomBits(1)
    x, quantized = plan.buffer(WIDTH), plan.quantized(WIDTH)
    results = _add_linears(plan, x, quantized)
    norm = random.normal(WIDTH)
    for name, accumulate in (("norm", False), ("gated", True)):
        results[name] = plan.buffer(NUM_OUTPUTS + 8)
        if name == "norm":
            plan.norm_quantize(x, norm, 1e-5, quantized)
        else:
            plan.gated_quantize(x, 0, 0, 0, quantized)
        weight = pack_matrix(random_matrix("Q4_1"), None).native()
        plan.linear([weight], [0], quantized, results[name], accumulate=accumulate)
    results["gated_linear"] = _add_gated_linear(plan, quantized)
    for name in KV_FORMATS:
        results[f"{name}_attention"], results[f"{name}_attended"] = _add_attention(plan, name)
    activations = random.normal(num_tokens, WIDTH)
    plan.view(x)[:num_tokens] = activations
    plan.view(results["gated"])[:num_tokens] = activations[:, : NUM_OUTPUTS + 8]
    for name in KV_FORMATS:
        plan.view(results[f"{name}_attention"] - 1)[:num_tokens] = random.normal(num_tokens, WIDTH)
    # Two requests, the first with one token; blocks of one layer, in reverse order.
    sizes = [size for size in (min(num_tokens, 1), num_tokens - 1) if size > 0]
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    rows = np.array([(0, size, i, i * num_blocks) for i, size in enumerate(sizes)], np.int32).reshape(-1, 4)
    tables = np.arange(2 * num_blocks, dtype=np.int32)[::-1].copy()
    kv = np.zeros(2 * num_blocks * BLOCK_BYTES or 1, np.uint8)
    plan.replay(rows, tables, np.zeros(num_tokens, np.int32), kv, timed=False)
    widths = dict.fromkeys(results, NUM_OUTPUTS) | dict.fromkeys(
        (f"{name}_attention" for name in KV_FORMATS), NUM_Q_HEADS * HEAD_DIM
    )
    return {name: plan.view(buffer)[:num_tokens, : widths[name]].copy() for name, buffer in results.items()}


def _add_linears(plan: _native.Plan, x: int, quantized: int) -> dict[str, int]:
    """Per format, x times a matrix of it, on quantized activations where the kernels take them; dense ones on both."""
    results = {}
    plan.quantize(x, 0, quantized)
    for name in (*QUANTIZED_FORMATS, "F32", "F16", "BF16"):
        matrix = pack_matrix(random_matrix(name), None)
        weight = matrix.native()
        if plan.takes_quantized(weight):
            results[name] = plan.buffer(NUM_OUTPUTS + 8)
            plan.linear([weight], [0], quantized, results[name], accumulate=False)
        if not matrix.is_quantized:
            lanes = f"{name} on float rows" if name in results else name
            results[lanes] = plan.buffer(NUM_OUTPUTS + 8)
            plan.linear_dense(weight, x, 0, results[lanes], 0, accumulate=False)
    return results


def _add_gated_linear(plan: _native.Plan, quantized: int) -> int:
    """A gated pair of linears whose quantized rows go through another one."""
    gate, up = (pack_matrix(random_matrix(name, WIDTH), None).native() for name in ("Q4_K", "Q5_0"))
    hidden, out = plan.quantized(WIDTH), plan.buffer(NUM_OUTPUTS + 8)
    plan.gated_linear(gate, up, quantized, 1, hidden)
    plan.linear([pack_matrix(random_matrix("Q4_1"), None).native()], [0], hidden, out, accumulate=False)
    return out


def _add_attention(plan: _native.Plan, dtype: str) -> tuple[int, int]:
    """Attention over K and V of `dtype`, and a linear of its quantized rows. Its input stands before its output.

    Over int8 it multiplies integers.
    """
    width = NUM_Q_HEADS * HEAD_DIM
    qkv, out = plan.buffer(WIDTH), plan.buffer(width)
    quantized, product = plan.quantized(width), plan.buffer(NUM_OUTPUTS + 8)
    table = plan.rope_angles([0.5**i for i in range(HEAD_DIM // 2)])
    k_column = NUM_Q_HEADS * HEAD_DIM
    v_column = k_column + NUM_KV_HEADS * HEAD_DIM
    half = HALF_BYTES[dtype]
    offset = 2 * sum(HALF_BYTES[name] for name in KV_FORMATS[: KV_FORMATS.index(dtype)])
    plan.attention(
        qkv, 0, k_column, v_column, out, quantized, BLOCK_BYTES, offset, offset + half, KV_TYPES[dtype], BLOCK_SIZE,
        NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, 7, 0.2, 0.0, table, dtype == "int8",
    )  # fmt: skip
    plan.linear(
        [pack_matrix(random_matrix("Q8_0", width=width), None).native()], [0], quantized, product, accumulate=False
    )
    return out, product
