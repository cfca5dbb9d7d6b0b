"""Loads weights for the native kernels: as they are stored, from the cache of packed ones, or packed now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from kvist.core.model_spec import ModelSpec
from kvist.execution.native import _native
from kvist.execution.native.huge_pages import huge_room
from kvist.execution.native.packed_file import ALIGNMENT
from kvist.execution.native.packed_weights import Matrix, Packing, Weight, packing_of, widened
from kvist.execution.native.weight_cache import WeightCache, cache_key
from kvist.models.registry import Model
from kvist.models.weight_sources import ModelWeights, WeightSource
from kvist.weights.checkpoint import Checkpoint
from kvist.weights.mapped_files import drop_read_pages
from kvist.weights.tensor import Tensor

DROP_EVERY_BYTES = 32 << 20  # of the files' pages kept beside the packed weights while loading
PIECE_BYTES = 4 << 20  # packed by one thread at a time, so that a large matrix keeps all of them busy

Progress = Callable[[int, int], None]  # bytes done, bytes in all
Bytes = NDArray[np.uint8]


def load_packed_weights(
    checkpoint: Checkpoint,
    model: Model,
    progress: Progress | None = None,
    *,
    num_threads: int = 1,
    cache: WeightCache | None = None,
) -> ModelWeights[Weight]:
    """Load all weights of `model`; `progress` is called with packed bytes done and in all, if any must be packed."""
    packings = all_packings(checkpoint, model)
    to_pack = {
        f"{name}/{i}/{packing.format}": packing
        for name, parts in packings.items()
        for i, packing in enumerate(parts)
        if not packing.is_as_stored
    }
    packed = _packed_arrays(checkpoint, to_pack, progress, num_threads, cache)
    shared: dict[str, Weight] = {}
    layers: list[dict[str, Weight]] = [{} for _ in range(model.spec.num_layers)]
    for source in model.sources:
        name = weight_name(source)
        matrices = tuple(
            packing.matrix(packing.tensor.data if packing.is_as_stored else packed[f"{name}/{i}/{packing.format}"])
            for i, packing in enumerate(packings[name])
        )
        home = shared if source.layer is None else layers[source.layer]
        home[source.name] = _weight(checkpoint, source, model.spec, matrices)
    drop_read_pages(checkpoint.tensors.values())
    return ModelWeights(shared, layers)


def _packed_arrays(
    checkpoint: Checkpoint,
    to_pack: Mapping[str, Packing],
    progress: Progress | None,
    num_threads: int,
    cache: WeightCache | None,
) -> Mapping[str, Bytes]:
    """The packed bytes of each, by name."""
    key = "" if cache is None or not to_pack else cache_key(checkpoint, _native.layout_version)
    if cache is not None and key:
        kept = cache.load(key, {name: packing.num_bytes for name, packing in to_pack.items()})
        if kept is not None:
            return kept
    arrays = _pack(checkpoint, to_pack, progress, num_threads)
    if cache is not None and key:
        cache.store(key, arrays)
    return arrays


def _pack(
    checkpoint: Checkpoint, to_pack: Mapping[str, Packing], progress: Progress | None, num_threads: int
) -> dict[str, Bytes]:
    arrays = _rooms({name: packing.num_bytes for name, packing in to_pack.items()})
    total = sum(packing.num_bytes for packing in to_pack.values())
    pieces = [piece for name, packing in to_pack.items() for piece in packing.pieces(arrays[name], PIECE_BYTES)]
    done = dropped = 0
    with ThreadPoolExecutor(num_threads, "packing") as threads:  # packing releases the interpreter lock
        for num_bytes in threads.map(_write, pieces):
            done += num_bytes
            if done - dropped >= DROP_EVERY_BYTES:
                dropped = done
                drop_read_pages(checkpoint.tensors.values())
            if progress is not None:
                progress(done, total)
    return arrays


def _rooms(sizes: Mapping[str, int]) -> dict[str, Bytes]:
    """Memory for each, in order, in one piece."""
    ends = list(accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values()))
    room = huge_room(ends[-1]) if ends else np.empty(0, np.uint8)
    return {name: room[begin : begin + sizes[name]] for name, begin in zip(sizes, [0, *ends], strict=False)}


def _write(piece: tuple[Packing, Bytes]) -> int:
    packing, packed = piece
    packing.write(packed)
    return len(packed)


def weight_name(source: WeightSource) -> str:
    """The name that tells a weight from all others of its model."""
    return source.name if source.layer is None else f"{source.layer}.{source.name}"


def all_packings(checkpoint: Checkpoint, model: Model) -> dict[str, list[Packing]]:
    """The packings of each weight, by `weight_name`."""
    packings = {weight_name(source): _packings(checkpoint, source, model.spec) for source in model.sources}
    if model.spec.moe is None:
        return packings
    for layer in range(model.spec.num_layers):
        # Experts that read the same rows need them in one form, quantized or not.
        for names in ([f"{layer}.gate", f"{layer}.up"], [f"{layer}.down"]):
            if len({packing.is_quantized for name in names for packing in packings[name]}) > 1:
                for name in names:
                    packings[name] = [widened(packing.tensor, packing.order) for packing in packings[name]]
    return packings


def _packings(checkpoint: Checkpoint, source: WeightSource, spec: ModelSpec) -> list[Packing]:
    """One for each matrix of the weight: none for a vector, one per expert for a stack."""
    if len(source.shape) == 1:
        return []
    if len(source.shape) == 3:
        return [packing_of(part, None) for name in source.tensors for part in _experts(checkpoint.tensor(name))]
    return [packing_of(checkpoint.tensor(source.tensors[0]), _row_order(source, spec))]


def _weight(checkpoint: Checkpoint, source: WeightSource, spec: ModelSpec, matrices: tuple[Matrix, ...]) -> Weight:
    if len(source.shape) > 1:
        return matrices if len(source.shape) == 3 else matrices[0]
    order = _row_order(source, spec)
    vector = checkpoint.tensor(source.tensors[0]).dequantize().astype(np.float32)  # a copy: kernels want it aligned
    vector = vector + np.float32(1) if source.plus_one else vector
    return vector if order is None else vector[order]


def _experts(tensor: Tensor) -> list[Tensor]:
    """A stacked tensor's experts, each a view; a matrix is one expert."""
    if len(tensor.shape) == 2:
        return [tensor]
    pieces = tensor.data.reshape(tensor.shape[0], -1)
    return [replace(tensor, shape=tensor.shape[1:], data=piece) for piece in pieces]


def _row_order(source: WeightSource, spec: ModelSpec) -> NDArray[np.int32] | None:
    """Rows of q and k that turn interleaved rotary pairs (2i, 2i+1) into halves (i, i + head_dim/2)."""
    if not spec.rope_interleaved or source.name not in ("q", "k", "q_bias", "k_bias"):
        return None
    head = np.concatenate([np.arange(0, spec.head_dim, 2), np.arange(1, spec.head_dim, 2)])
    starts = np.arange(0, source.shape[0], spec.head_dim)
    order: NDArray[np.int32] = (starts[:, None] + head).reshape(-1).astype(np.int32)
    return order
