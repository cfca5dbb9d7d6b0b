"""Step time from counts: for each kind of operation the longer of computing and moving, with measured efficiencies.

A step is the host's part and the device's: products with the weights, attention of prompts and of single tokens, sums
over ranks, sends between pipeline stages. After Williams et al., Roofline (2009); docs/costmodel.md: formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from kvist.core.device_spec import DeviceSpec
from kvist.core.errors import ConfigError
from kvist.core.model_spec import ModelSpec
from kvist.costmodel.efficiency import Efficiency
from kvist.costmodel.error_bar import ErrorBar
from kvist.costmodel.layer_work import ACTIVATION_BYTES, layer_work
from kvist.costmodel.model_size import embedding_parameters
from kvist.costmodel.number_format import NumberFormat, product_peak
from kvist.costmodel.step_work import StepWork

CORNER = 4.0  # sharpness of the roofline's corner: both sides equal cost 2 ** (1 / CORNER) of one
RESERVED_TOKENS = 2560  # vLLM's budget of a step by default in 2023 and 2024; its memory was reserved for that many
SMALL_TILE, LARGE_TILE, LARGE_ROWS = 16, 64, 512  # rows of a product are computed in tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A model on devices. Stages split layers, ranks split each layer."""

    model: ModelSpec
    device: DeviceSpec
    number_format: NumberFormat
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    kv_element_bytes: float | None = None  # None: as the format says

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1 or not 1 <= self.pipeline_parallel_size <= self.model.num_layers:
            raise ConfigError(
                f"tensor parallel size {self.tensor_parallel_size} and pipeline parallel size "
                f"{self.pipeline_parallel_size}: both are at least 1, and there are {self.model.num_layers} layers"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Seconds of one pass by kind of operation. launch_wait_s: how long the device waits for launches."""

    host_s: float
    linear_s: float
    elementwise_s: float
    prefill_attention_s: float
    decode_attention_s: float
    all_reduce_s: float
    logits_s: float
    layer_gaps_s: float
    pipeline_send_s: float
    launch_wait_s: float

    @property
    def total_s(self) -> float:
        return math.fsum(getattr(self, field.name) for field in fields(self))


class RooflineModel:
    """A StepTimeModel of one placement. `error_bar` gives the margins."""

    def __init__(self, placement: Placement, efficiency: Efficiency, error_bar: ErrorBar) -> None:
        self.placement = placement
        self.efficiency = efficiency
        self.error_bar = error_bar
        device, spec = placement.device, placement.model
        ranks = placement.tensor_parallel_size
        kv_bytes = placement.kv_element_bytes or placement.number_format.kv_bytes
        self._layer = layer_work(spec, tensor_parallel_size=ranks, kv_element_bytes=kv_bytes)
        self._windows = [layer.sliding_window for layer in spec.layers if layer.sliding_window is not None]
        self._head_weights = embedding_parameters(spec) / ranks
        self._flop_per_s = efficiency.gemm * product_peak(placement.number_format, device)
        half_peak = device.peak("bf16") or device.peak("fp32") or self._flop_per_s
        self._half_flop_per_s = efficiency.gemm * half_peak
        self._attention_flop_per_s = efficiency.prefill_attention * half_peak
        self._bytes_per_s = efficiency.memory * device.memory_bytes_per_s
        self._kv_bytes_per_s = efficiency.decode_attention * device.memory_bytes_per_s
        link = device.link_bytes_per_s if ranks <= device.num_link_peers else device.host_bytes_per_s
        self._reduce_bytes_per_s = efficiency.link * link * ranks / (2.0 * (ranks - 1)) if ranks > 1 else math.inf
        self._gqa_factor = 1.0 + efficiency.gqa_penalty * (self._layer.queries_per_kv_head - 1.0)

    def predict_s(self, work: StepWork) -> float:
        return self.parts(work).total_s

    def margin_s(self, work: StepWork) -> float:
        is_prefill = work.prefill_pairs > 0
        return self.predict_s(work) * self.error_bar.relative(is_prefill=is_prefill)

    def device_s(self, work: StepWork) -> float:
        """Linear and elementwise parts alone, as operators are profiled."""
        parts = self.parts(work)
        return parts.linear_s + parts.elementwise_s

    def parts(self, work: StepWork) -> StepParts:
        """One pass through all layers and stages, by kind of operation."""
        fit, layer, spec = self.efficiency, self._layer, self.placement.model
        num_layers, tokens = spec.num_layers, work.num_tokens
        linear_s = num_layers * self._linear_s(tokens)
        elementwise_s = num_layers * tokens * layer.element_bytes / self._bytes_per_s
        prefill_s = self._over_windows(work.prefill_pairs, tokens) * layer.pair_flops / self._attention_flop_per_s
        prefill_s += num_layers * work.prefill_context_tokens * layer.kv_bytes / self._kv_bytes_per_s
        keys = self._over_windows(work.decode_context_tokens, work.num_sequences)
        decode_s = keys * layer.kv_bytes * self._gqa_factor / self._kv_bytes_per_s
        reduce_s = num_layers * self._all_reduce_s(tokens)
        logits_s = self._product_s(work.num_sampled, self._head_weights, ACTIVATION_BYTES, self._half_flop_per_s)
        gaps_s = num_layers * fit.layer_s
        send_s = self._send_s(tokens)
        device_s = linear_s + elementwise_s + prefill_s + decode_s + reduce_s + logits_s + gaps_s + send_s
        host_s = fit.host_s + fit.sequence_s * work.num_sequences + fit.sequence_pair_s * work.num_sequences**2
        launch_s = fit.launch_s
        if work.prefill_pairs:
            launch_s = max(launch_s, fit.prefill_launch_s)
            host_s += fit.overflow_token_s * max(0, tokens - RESERVED_TOKENS)
        return StepParts(
            host_s=host_s,
            linear_s=linear_s,
            elementwise_s=elementwise_s,
            prefill_attention_s=prefill_s,
            decode_attention_s=decode_s,
            all_reduce_s=reduce_s,
            logits_s=logits_s,
            layer_gaps_s=gaps_s,
            pipeline_send_s=send_s,
            launch_wait_s=_smooth_max(device_s, num_layers * launch_s) - device_s,
        )

    def _linear_s(self, num_tokens: int) -> float:
        layer, weight_bytes = self._layer, self.placement.number_format.weight_bytes
        dense_s = self._product_s(num_tokens, layer.weights, weight_bytes, self._flop_per_s)
        if not layer.expert_weights or not num_tokens:
            return dense_s
        active = layer.active_experts(num_tokens)
        rows = num_tokens * layer.num_experts_per_token / active
        return dense_s + self._product_s(rows, active * layer.expert_weights, weight_bytes, self._flop_per_s)

    def _product_s(self, num_rows: float, num_weights: float, weight_bytes: float, flop_per_s: float) -> float:
        """`num_rows` rows times a matrix (or several, each with as many rows) of `num_weights` in all."""
        if not num_rows:
            return 0.0
        tile = SMALL_TILE if num_rows <= LARGE_ROWS else LARGE_TILE
        rows = tile * math.ceil(num_rows / tile)
        compute_s = 2.0 * num_weights * (rows + self.efficiency.gemm_half_rows) / flop_per_s
        return _smooth_max(compute_s, num_weights * weight_bytes / self._bytes_per_s)

    def _all_reduce_s(self, num_tokens: int) -> float:
        """Both sums of a layer."""
        ranks = self.placement.tensor_parallel_size
        if ranks == 1:
            return 0.0
        latency_s = 2.0 * self.efficiency.all_reduce_s * math.log2(ranks)
        return latency_s + num_tokens * self._layer.all_reduce_bytes / self._reduce_bytes_per_s

    def _send_s(self, num_tokens: int) -> float:
        stages, device = self.placement.pipeline_parallel_size, self.placement.device
        if stages == 1:
            return 0.0
        num_devices = stages * self.placement.tensor_parallel_size
        link = device.link_bytes_per_s if num_devices <= device.num_link_peers else device.network_bytes_per_s
        send_bytes = num_tokens * self.placement.model.hidden_size * ACTIVATION_BYTES
        return (stages - 1) * (self.efficiency.all_reduce_s + send_bytes / (self.efficiency.link * link))

    def _over_windows(self, per_layer: int, num_queries: int) -> float:
        """`per_layer` keys or pairs in each layer, in windowed ones at most the window for each query."""
        full = (self.placement.model.num_layers - len(self._windows)) * per_layer
        return full + sum(min(per_layer, window * num_queries) for window in self._windows)


def _smooth_max(left: float, right: float) -> float:
    larger, smaller = (left, right) if left > right else (right, left)
    return larger * (1.0 + (smaller / larger) ** CORNER) ** (1.0 / CORNER) if larger > 0.0 else 0.0
