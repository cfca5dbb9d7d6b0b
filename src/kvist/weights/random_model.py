"""Writes a model with random weights in the shape of a well-known one, as a GGUF file or a Hugging Face folder.

Both kinds of file hold the same numbers for the same seed, if their format can. The tokenizer is the tiny one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Literal

from kvist.core.errors import ConfigError
from kvist.quantization.formats import BF16, F16, F32, FORMATS, WeightFormat
from kvist.weights.atomic_file import write_atomically
from kvist.weights.gguf_writer import write_gguf
from kvist.weights.model_shapes import SHAPES, ModelShape
from kvist.weights.random_configs import gguf_metadata, hf_config, rope_frequency_factors
from kvist.weights.random_layout import LogicalTensor, logical_tensors
from kvist.weights.random_weights import RandomMatrix, RandomWeights
from kvist.weights.safetensors_writer import write_safetensors_folder
from kvist.weights.tensor import Chunk, StoredTensor
from kvist.weights.tiny_tokenizer import gguf_tokenizer, hf_tokenizer, tiny_vocabulary

GGUF_FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q5_k_m", "q6_k")
HF_FORMATS = {"hf": BF16, "hf-f16": F16, "hf-f32": F32}
RANDOM_FORMATS = (*GGUF_FORMATS, *HF_FORMATS)

Progress = Callable[[int, int], None]  # bytes written, bytes in all

_ROPE_FACTORS = "rope_freqs.weight"
# What a K-quant gives way to where rows do not fill its blocks of 256, as is usual in GGUF files.
_FALLBACKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_ROUNDING: dict[str, Literal["bf16", "32nds"]] = {"norm": "32nds", "vector": "bf16", "router": "bf16"}
_HF_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def make_random_model(
    like: str,
    weight_format: str,
    path: Path,
    *,
    layers: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Write a random model to `path` (a .gguf file; a folder for the formats of HF_FORMATS) and return `path`.

    like: a name of SHAPES. layers: instead of the real number. Raises ConfigError for a bad choice, CheckpointError
    if the place cannot be written.
    """
    _check_choice("model shape", like, SHAPES)
    _check_choice("format", weight_format, RANDOM_FORMATS)
    if layers is not None and layers < 1:
        raise ConfigError(f"a model of {layers} layers cannot be made; at least 1 is needed")
    if seed < 0:
        raise ConfigError(f"seed {seed} is negative")
    shape = SHAPES[like]
    num_layers = layers or shape.num_layers
    vocab_size = shape.vocab_size or len(tiny_vocabulary()[0])
    tensors = list(logical_tensors(shape, num_layers, vocab_size))
    add_bos = shape.architecture not in ("qwen2", "qwen3")
    weights = RandomWeights(seed)
    if weight_format in HF_FORMATS:
        stored_format = HF_FORMATS[weight_format]
        config = hf_config(shape, num_layers, vocab_size, _HF_DTYPES[stored_format.name])
        stored = dict(_hf_tensors(shape, tensors, stored_format))
        for name, content in ({"config.json": config} | hf_tokenizer(vocab_size, add_bos=add_bos)).items():
            with write_atomically(path / name) as file:
                file.write(json.dumps(content, ensure_ascii=False).encode())
        write_safetensors_folder(path, list(stored), _encoder(shape, stored, weights, progress))
    else:
        metadata = gguf_metadata(shape, like, num_layers, vocab_size, weight_format)
        metadata |= gguf_tokenizer(vocab_size, add_bos=add_bos)
        stored = dict(_gguf_tensors(shape, tensors, weight_format, num_layers))
        write_gguf(path, metadata, list(stored), _encoder(shape, stored, weights, progress))
    return path


def describe_random_gguf(
    like: str, weight_format: str, layers: int | None = None
) -> tuple[dict[str, Any], list[StoredTensor]]:
    """Metadata, without a tokenizer, and tensors of the GGUF file that `make_random_model` would write.

    Raises ConfigError for a bad choice.
    """
    _check_choice("model shape", like, SHAPES)
    _check_choice("format", weight_format, GGUF_FORMATS)
    shape = SHAPES[like]
    num_layers = layers or shape.num_layers
    vocab_size = shape.vocab_size or len(tiny_vocabulary()[0])
    tensors = list(logical_tensors(shape, num_layers, vocab_size))
    metadata = gguf_metadata(shape, like, num_layers, vocab_size, weight_format)
    return metadata, [tensor for tensor, _ in _gguf_tensors(shape, tensors, weight_format, num_layers)]


def _check_choice(what: str, name: str, choices: Collection[str]) -> None:
    if name not in choices:
        near = difflib.get_close_matches(name, choices, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown {what} {name!r}; there are {', '.join(choices)}.{hint}")


Stored = dict[StoredTensor, tuple[RandomMatrix, ...]]


def _encoder(
    shape: ModelShape, stored: Stored, weights: RandomWeights, progress: Progress | None
) -> Callable[[StoredTensor], Iterator[Chunk]]:
    num_bytes_total = sum(tensor.num_bytes for tensor in stored)
    num_bytes_done = 0

    def chunks(tensor: StoredTensor) -> Iterator[Chunk]:
        nonlocal num_bytes_done
        if tensor.name == _ROPE_FACTORS:
            factors = rope_frequency_factors(shape)
            assert factors is not None
            yield factors.tobytes()
        for matrix in stored[tensor]:
            for chunk in weights.encode(matrix, tensor.format):
                yield chunk
                num_bytes_done += len(chunk)
                if progress is not None:
                    progress(num_bytes_done, num_bytes_total)

    return chunks


def _matrices(tensor: LogicalTensor, mean: float, interleaved_head_dim: int | None) -> tuple[RandomMatrix, ...]:
    """The numbers of a tensor: one matrix, or one for each expert. Seeded by the GGUF name in both kinds of file."""
    suffixes = [""] if tensor.num_experts is None else [f".{expert}" for expert in range(tensor.num_experts)]
    return tuple(
        RandomMatrix(
            key=tensor.gguf + suffix,
            rows=1 if len(tensor.shape) == 1 else tensor.shape[0],
            columns=tensor.shape[-1],
            std=tensor.std,
            mean=mean,
            rounding=_ROUNDING.get(tensor.kind, "none"),
            interleaved_head_dim=interleaved_head_dim,
        )
        for suffix in suffixes
    )


def _hf_tensors(
    shape: ModelShape, tensors: list[LogicalTensor], stored_format: WeightFormat
) -> Iterator[tuple[StoredTensor, tuple[RandomMatrix, ...]]]:
    for tensor in tensors:
        # Gemma's files hold what is added to 1.
        mean = tensor.mean - 1 if shape.is_gemma and tensor.kind == "norm" else tensor.mean
        for expert, matrix in enumerate(_matrices(tensor, mean, None)):
            yield StoredTensor(tensor.hf.format(expert=expert), tensor.shape, stored_format), (matrix,)


def _gguf_tensors(
    shape: ModelShape, tensors: list[LogicalTensor], weight_format: str, num_layers: int
) -> Iterator[tuple[StoredTensor, tuple[RandomMatrix, ...]]]:
    if rope_frequency_factors(shape) is not None:
        yield StoredTensor(_ROPE_FACTORS, (shape.head_dim // 2,), F32), ()
    for tensor in tensors:
        interleaved = shape.head_dim if tensor.is_rotated and shape.is_rope_interleaved_in_gguf else None
        experts = () if tensor.num_experts is None else (tensor.num_experts,)
        stored_format = _gguf_format(tensor, weight_format, num_layers, shape)
        stored = StoredTensor(tensor.gguf, experts + tensor.shape, stored_format)
        yield stored, _matrices(tensor, tensor.mean, interleaved)


def _gguf_format(tensor: LogicalTensor, weight_format: str, num_layers: int, shape: ModelShape) -> WeightFormat:
    """The usual mix: float32 vectors, Q6_K for the output matrix and, in the *_m mixes, for the touchiest layers."""
    if tensor.kind in ("vector", "norm", "router"):
        return F32
    name = weight_format.upper()
    is_mixed = name.endswith("_K_M")
    name = name.removesuffix("_M")
    is_output = tensor.gguf == "output.weight" or (shape.tie_embeddings and tensor.kind == "embedding")
    if name.startswith(("Q4", "Q5")) and (is_output or (is_mixed and _is_touchy(tensor.gguf, num_layers))):
        name = "Q6_K"
    chosen = FORMATS[name]
    if tensor.shape[-1] % chosen.block_elements:
        chosen = FORMATS[_FALLBACKS[name]]
    return chosen


def _is_touchy(gguf_name: str, num_layers: int) -> bool:
    """Value and down projections of the first eighth, the last eighth and every third layer between."""
    if "attn_v." not in gguf_name and "ffn_down" not in gguf_name:
        return False
    layer = int(gguf_name.split(".")[1])
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
