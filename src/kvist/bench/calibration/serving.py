"""Predicts serving rows by playing their load through the simulator: the engine's own scheduler and cache.

One replica of the row's placement with the settings of the engines that were measured: prompts in chunks beside
decodes, prefixes cached, a KV pool of what memory leaves. A request's time outside steps is added to its first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from kvist.bench.calibration.load_shape import LoadShape, load_shape
from kvist.bench.calibration.points import Point
from kvist.bench.calibration.serving_load import closed_rounds, num_open_requests, serving_records
from kvist.bench.calibration.steady_state import metric_ms, predict_steady
from kvist.config.cluster_config import ClusterCacheConfig, ClusterConfig, ReplicaGroupConfig, RouterConfig
from kvist.costmodel.memory import device_memory
from kvist.costmodel.roofline import RooflineModel
from kvist.metrics.percentiles import percentile
from kvist.simulator.cluster_simulation import simulate
from kvist.simulator.links import NS_PER_S
from kvist.simulator.simulation_result import SimulatedRequest

BLOCK_SIZE = 16
MAX_NUM_SEQS = 1024  # vLLM's default on large devices since 2025
LONGEST = 1 << 20
LONG_PROMPTS, LONG_OUTPUT = 2_000_000, 40_000  # tokens: of one round, of one answer
LONG_OPEN_PROMPTS, LONG_OPEN_OUTPUTS = 20_000_000, 4_000_000  # tokens of all requests of an open load


class ServingPredictor:
    """Remembers what it simulated: a run's metrics stand in rows of their own."""

    def __init__(self) -> None:
        self._results: dict[tuple[object, ...], list[SimulatedRequest]] = {}

    def predict(self, point: Point, model: RooflineModel) -> float | None:
        """The point's metric in its unit; None where its columns describe no load. Raises ConfigError."""
        shape = load_shape(point)
        if shape is None or _is_long(shape):
            return predict_steady(point, model)
        placement = model.placement
        key = (
            shape, point.model, placement.device.name, placement.number_format.name, placement.tensor_parallel_size,
            placement.kv_element_bytes, point.generation,
        )  # fmt: skip
        requests = self._results.get(key)
        if requests is None:
            requests = self._results[key] = simulate_load(shape, model)
        return serving_metric(point.metric, shape, requests, model.efficiency.request_s)


def _is_long(shape: LoadShape) -> bool:
    """Whether the load would take minutes to simulate; the steady state then has to do."""
    if shape.rate_per_s:
        number = num_open_requests(shape.rate_per_s)
        return number * shape.prompt_len > LONG_OPEN_PROMPTS or number * shape.output_len > LONG_OPEN_OUTPUTS
    clients = shape.num_clients or 0
    return clients * shape.prompt_len > LONG_PROMPTS or shape.output_len > LONG_OUTPUT or clients > MAX_NUM_SEQS


def simulate_load(shape: LoadShape, model: RooflineModel) -> list[SimulatedRequest]:
    """All requests of the load that were answered."""
    memory = device_memory(model.placement, max_num_batched_tokens=shape.max_step_tokens)
    group = ReplicaGroupConfig(
        kv_cache_tokens=max(memory.num_kv_tokens, 32),
        max_num_batched_tokens=shape.max_step_tokens,
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=LONGEST,
    )
    config = ClusterConfig(
        groups=(group,),
        cache=ClusterCacheConfig(block_size=BLOCK_SIZE),
        router=RouterConfig(policy="round_robin"),
    )
    result = simulate(config, serving_records(shape), model)
    return [request for request in result.requests if request.outcome == "finished"]


def serving_metric(
    metric: str, shape: LoadShape, requests: Sequence[SimulatedRequest], request_s: float
) -> float | None:
    """The mean or percentile that the metric's name asks for, in its unit; None if it asks for something else."""
    if not requests:
        return None
    if "req_s" in metric:
        return len(requests) * NS_PER_S / max(request.token_times_ns[-1] for request in requests)
    weights = _weights(shape, requests)
    ttfts_s = [request_s + (request.ttft_ns or 0) / NS_PER_S for request in requests]
    spans_s = [(request.token_times_ns[-1] - request.token_times_ns[0]) / NS_PER_S for request in requests]
    if "p99" in metric:
        return 1e3 * percentile(sorted(ttfts_s), 99.0) if "ttft" in metric else None
    gaps = [float(len(request.token_times_ns) - 1) for request in requests]
    itl_s = _mean(spans_s, weights) / max(1e-9, _mean(gaps, weights))
    ttft_s = _mean(ttfts_s, weights)
    return metric_ms(metric, ttft_s, itl_s, ttft_s + _mean(spans_s, weights))


def _weights(shape: LoadShape, requests: Sequence[SimulatedRequest]) -> list[float]:
    """Of each request: where fewer rounds were simulated, those in the middle stand for all that came after the first.

    The last round then only keeps the engine as busy as it was until the others have ended.
    """
    clients, rounds = shape.num_clients, closed_rounds(shape) if shape.num_clients else 0
    if clients is None or rounds == shape.num_rounds:
        return [1.0] * len(requests)
    middle = (shape.num_rounds - 1) / (rounds - 2)
    by_round = [1.0, *[middle] * (rounds - 2), 0.0]
    return [by_round[request.index // clients] for request in requests]


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    total: float = sum(map(mul, values, weights))
    return total / sum(weights)
