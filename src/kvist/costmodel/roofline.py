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
MAX_REMEMBERED = 4096
GEMM_HALF_ROWS = 60.0  # rows at which a product reaches half of its efficiency
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

    @property
    def kv_bytes(self) -> float:
        """Of an element of a key or value."""
        return self.kv_element_bytes or self.number_format.kv_bytes

    def __post_init__(self) -> None:
        ranks, stages, model = self.tensor_parallel_size, self.pipeline_parallel_size, self.model
        if ranks < 1 or not splits_heads(model, ranks):
            splits = [each for each in range(1, model.num_q_heads + 1) if splits_heads(model, each)]
            raise ConfigError(
                f"tensor parallel size {ranks} does not split {model.num_q_heads} query heads and "
                f"{model.num_kv_heads} KV heads evenly; {', '.join(map(str, splits))} do"
            )
        if not 1 <= stages <= model.num_layers:
            raise ConfigError(f"pipeline parallel size {stages}: it is from 1 to the {model.num_layers} layers")


def splits_heads(model: ModelSpec, ranks: int) -> bool:
    """Whether each rank gets as many heads as any other; KV heads may be copied."""
    return model.num_q_heads % ranks == 0 and (model.num_kv_heads % ranks == 0 or ranks % model.num_kv_heads == 0)


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


@dataclass(frozen=True, slots=True)
class _FixedParts:
    """Seconds of a step that its numbers of tokens and of sampled rows decide."""

    linear_s: float
    elementwise_s: float
    all_reduce_s: float
    logits_s: float
    layer_gaps_s: float
    pipeline_send_s: float
    total_s: float


class RooflineModel:
    """A StepTimeModel of one placement. `error_bar` gives the margins."""

    def __init__(self, placement: Placement, efficiency: Efficiency, error_bar: ErrorBar) -> None:
        self.placement = placement
        self.efficiency = efficiency
        self.error_bar = error_bar
        device, spec = placement.device, placement.model
        ranks = placement.tensor_parallel_size
        self._layer = layer_work(spec, tensor_parallel_size=ranks, kv_element_bytes=placement.kv_bytes)
        self._windows = [layer.sliding_window for layer in spec.layers if layer.sliding_window is not None]
        self._head_weights = embedding_parameters(spec) / ranks
        self._flop_per_s = efficiency.gemm * product_peak(placement.number_format, device)
        half_peak = device.peak("bf16") or device.peak("fp32") or self._flop_per_s
        self._half_flop_per_s = efficiency.gemm * half_peak
        self._attention_flop_per_s = efficiency.prefill_attention * half_peak
        self._bytes_per_s = efficiency.memory * device.memory_bytes_per_s
        self._kv_bytes_per_s = efficiency.decode_attention * device.memory_bytes_per_s
        link = device.link_bytes_per_s if ranks <= device.num_link_peers else device.host_bytes_per_s
        kind = efficiency.kind
        self._reduce_bytes_per_s = kind.link * link * ranks / (2.0 * (ranks - 1)) if ranks > 1 else math.inf
        gqa_factor = 1.0 + kind.gqa_penalty * (self._layer.queries_per_kv_head - 1.0)
        self._key_s = self._layer.kv_bytes * gqa_factor / self._kv_bytes_per_s
        self._send_latency_s = kind.all_reduce_s + kind.all_reduce_layers * efficiency.layer_s
        self._all_reduce_latency_s = self._send_latency_s * math.log2(ranks)
        self._remembered: dict[tuple[int, int], _FixedParts] = {}

    def predict_s(self, work: StepWork) -> float:
        fixed = self._fixed_parts(work.num_tokens, work.num_sampled)
        device_s = fixed.total_s + self._prefill_attention_s(work) + self._decode_attention_s(work)
        return self._host_s(work) + _smooth_max(device_s, self._launch_s(work))

    def margin_s(self, work: StepWork) -> float:
        is_prefill = work.prefill_pairs > 0
        return self.predict_s(work) * self.error_bar.relative(is_prefill=is_prefill)

    def device_s(self, work: StepWork) -> float:
        """Linear and elementwise parts alone, as operators are profiled."""
        parts = self.parts(work)
        return parts.linear_s + parts.elementwise_s

    def parts(self, work: StepWork) -> StepParts:
        """One pass through all layers and stages, by kind of operation."""
        fixed = self._fixed_parts(work.num_tokens, work.num_sampled)
        prefill_s, decode_s = self._prefill_attention_s(work), self._decode_attention_s(work)
        device_s = fixed.total_s + prefill_s + decode_s
        return StepParts(
            host_s=self._host_s(work),
            linear_s=fixed.linear_s,
            elementwise_s=fixed.elementwise_s,
            prefill_attention_s=prefill_s,
            decode_attention_s=decode_s,
            all_reduce_s=fixed.all_reduce_s,
            logits_s=fixed.logits_s,
            layer_gaps_s=fixed.layer_gaps_s,
            pipeline_send_s=fixed.pipeline_send_s,
            launch_wait_s=_smooth_max(device_s, self._launch_s(work)) - device_s,
        )

    def _fixed_parts(self, num_tokens: int, num_sampled: int) -> _FixedParts:
        """What does not depend on contexts; remembered, since steps that only decode repeat it."""
        key = num_tokens, num_sampled
        found = self._remembered.get(key)
        if found is None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            found = self._remembered[key] = self._count_fixed_parts(num_tokens, num_sampled)
        return found

    def _count_fixed_parts(self, num_tokens: int, num_sampled: int) -> _FixedParts:
        num_layers = self.placement.model.num_layers
        parts = (
            num_layers * self._linear_s(num_tokens),
            num_layers * num_tokens * self._layer.element_bytes / self._bytes_per_s,
            num_layers * self._all_reduce_s(num_tokens),
            self._product_s(num_sampled, self._head_weights, ACTIVATION_BYTES, self._half_flop_per_s),
            0.0 if self.efficiency.kind.launches else num_layers * self.efficiency.layer_s,
            self._send_s(num_tokens),
        )
        return _FixedParts(*parts, sum(parts))

    def _prefill_attention_s(self, work: StepWork) -> float:
        if not work.prefill_pairs:
            return 0.0
        pairs = self._over_windows(work.prefill_pairs, work.num_tokens)
        keys = self.placement.model.num_layers * work.prefill_context_tokens
        read_s = keys * self._layer.kv_bytes / self._kv_bytes_per_s
        return pairs * self._layer.pair_flops / self._attention_flop_per_s + read_s

    def _decode_attention_s(self, work: StepWork) -> float:
        keys = self._over_windows(work.decode_context_tokens, work.num_sequences)
        return keys * self._key_s

    def _host_s(self, work: StepWork) -> float:
        fit, number = self.efficiency, work.num_sequences
        host_s = fit.host_s + fit.sequence_s * number
        if fit.kind.overflow_token_s and work.prefill_pairs and work.num_tokens > RESERVED_TOKENS:
            host_s += fit.kind.overflow_token_s * (work.num_tokens - RESERVED_TOKENS)
        return host_s

    def _launch_s(self, work: StepWork) -> float:
        """What the host takes to launch all layers; a graph is launched as one."""
        fit = self.efficiency
        if not fit.kind.launches:
            return 0.0
        launch_s = max(fit.layer_s, fit.kind.prefill_launch_s) if work.prefill_pairs else fit.layer_s
        return self.placement.model.num_layers * launch_s

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
        compute_s = 2.0 * num_weights * (rows + GEMM_HALF_ROWS) / flop_per_s
        return _smooth_max(compute_s, num_weights * weight_bytes / self._bytes_per_s)

    def _all_reduce_s(self, num_tokens: int) -> float:
        """Both sums of a layer."""
        ranks = self.placement.tensor_parallel_size
        if ranks == 1:
            return 0.0
        return 2.0 * self._all_reduce_latency_s + num_tokens * self._layer.all_reduce_bytes / self._reduce_bytes_per_s

    def _send_s(self, num_tokens: int) -> float:
        stages, device = self.placement.pipeline_parallel_size, self.placement.device
        if stages == 1:
            return 0.0
        num_devices = stages * self.placement.tensor_parallel_size
        link = device.link_bytes_per_s if num_devices <= device.num_link_peers else device.network_bytes_per_s
        send_bytes = num_tokens * self.placement.model.hidden_size * ACTIVATION_BYTES
        return (stages - 1) * (self._send_latency_s + send_bytes / (self.efficiency.kind.link * link))

    def _over_windows(self, per_layer: int, num_queries: int) -> float:
        """`per_layer` keys or pairs in each layer, in windowed ones at most the window for each query."""
        full = (self.placement.model.num_layers - len(self._windows)) * per_layer
        if not self._windows:
            return full
        return full + sum(min(per_layer, window * num_queries) for window in self._windows)


def _smooth_max(left: float, right: float) -> float:
    larger, smaller = (left, right) if left > right else (right, left)
    return larger * (1.0 + (smaller / larger) ** CORNER) ** (1.0 / CORNER) if larger > 0.0 else 0.0
