"""A checkpoint with its matrices in another format, in memory: the same model, larger or smaller."""

from __future__ import annotations

from dataclasses import replace

from kvist.quantization.formats import WeightFormat
from kvist.quantization.quantize import quantize
from kvist.weights.checkpoint import Checkpoint
from kvist.weights.tensor import Tensor


def requantized(checkpoint: Checkpoint, weight_format: WeightFormat) -> Checkpoint:
    """Every matrix rounded from the checkpoint's own numbers into `weight_format`; vectors stay.

    By plain rounding, without a search for better scales: see kvist.quantization.quantize. Raises KeyError for a
    format that cannot be written, ValueError where rows are no whole blocks of it.
    """
    tensors = {name: _requantized(tensor, weight_format) for name, tensor in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors, identity=f"{checkpoint.identity} as {weight_format.name}")


def _requantized(tensor: Tensor, weight_format: WeightFormat) -> Tensor:
    if len(tensor.shape) < 2 or tensor.format == weight_format:
        return tensor
    weight_format.num_bytes(tensor.shape[-1])
    data = quantize(tensor.dequantize(), weight_format)
    return Tensor(name=tensor.name, shape=tensor.shape, format=weight_format, data=data)
