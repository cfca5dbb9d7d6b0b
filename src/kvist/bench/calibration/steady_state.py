"""Mean latencies of a load from its steady state, in closed form: quick enough for a fit. `serving` simulates instead.

A step decodes for all that run; prompts ride along. With T the step of the mean batch and D what a prompt adds:
a client sees T + D x (prompts per step) between tokens. Little's law gives the batch of an open load.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.bench.calibration.load_shape import LoadShape, load_shape
from kvist.bench.calibration.points import Point
from kvist.core.errors import ConfigError
from kvist.costmodel.memory import device_memory
from kvist.costmodel.roofline import RooflineModel
from kvist.costmodel.step_work import StepWork

NUM_ROUNDS = 12  # of the fixed point of an open load
MAX_BATCH = 1024.0  # an overloaded engine's; waiting beyond it is not described
MAX_PROMPT_SHARE = 0.95  # of the time; a load that needs more has no steady state


@dataclass(frozen=True, slots=True)
class Latencies:
    """Means in seconds. batch: sequences that run at once."""

    ttft_s: float
    itl_s: float
    e2e_s: float
    batch: float


def predict_steady(point: Point, model: RooflineModel) -> float | None:
    """The point's metric in ms; None for other kinds and metrics."""
    shape = load_shape(point)
    if shape is None:
        return None
    try:
        latencies = closed_load(shape, model) if shape.num_clients else open_load(shape, model)
    except ConfigError:
        return None
    return metric_ms(point.metric, latencies.ttft_s, latencies.itl_s, latencies.e2e_s)


def metric_ms(metric: str, ttft_s: float, itl_s: float, e2e_s: float) -> float | None:
    """The mean that a metric's name asks for, in ms."""
    if "p99" in metric:
        return None
    for word, value in (("ttft", ttft_s), ("tpot", itl_s), ("itl", itl_s), ("e2e", e2e_s)):
        if word in metric:
            return 1e3 * value
    return None


def closed_load(shape: LoadShape, model: RooflineModel) -> Latencies:
    """`num_clients` clients, each with its next request at once; all begin together."""
    assert shape.num_clients
    context = shape.prompt_len + shape.output_len / 2.0
    capacity = device_memory(model.placement).num_kv_tokens / context
    batch = max(1.0, min(float(shape.num_clients), capacity))
    decode_s, prompt_s = _step(shape, model, batch, context)
    itl_s = decode_s + prompt_s * (batch - 1.0) / shape.output_len
    service_s = itl_s * shape.output_len
    queue_s = service_s * max(0.0, shape.num_clients - batch) / batch
    # The first round of requests comes all at once: a request finds half of the others before it.
    burst_s = (prompt_s + decode_s * min(1.0, shape.prompt_len / shape.max_step_tokens)) * (batch - 1.0) / 2.0
    ttft_s = model.efficiency.request_s + itl_s / 2.0 + decode_s + prompt_s + queue_s
    ttft_s += burst_s / shape.num_rounds
    return Latencies(ttft_s, itl_s, ttft_s + itl_s * (shape.output_len - 1), batch)


def open_load(shape: LoadShape, model: RooflineModel) -> Latencies:
    """Requests at a mean rate, whatever the answers take."""
    assert shape.rate_per_s
    context = shape.prompt_len + shape.output_len / 2.0
    batch, latencies = 1.0, None
    for _ in range(NUM_ROUNDS):
        decode_s, prompt_s = _step(shape, model, batch, context)
        share = min(MAX_PROMPT_SHARE, shape.rate_per_s * prompt_s)
        itl_s = decode_s / (1.0 - share)
        wait_s = itl_s / 2.0 + share * prompt_s / 2.0
        ttft_s = model.efficiency.request_s + wait_s + decode_s + prompt_s
        latencies = Latencies(ttft_s, itl_s, ttft_s + itl_s * (shape.output_len - 1), batch)
        batch = min(MAX_BATCH, max(1.0, shape.rate_per_s * latencies.e2e_s))
    assert latencies is not None
    return latencies


def _step(shape: LoadShape, model: RooflineModel, batch: float, context: float) -> tuple[float, float]:
    """The time of a step that decodes for `batch`, and what one more prompt adds in all steps that it takes."""
    low, high = int(batch), int(batch) + 1
    weight = batch - low
    decode_s = _decode_s(model, low, context) * (1.0 - weight) + _decode_s(model, high, context) * weight
    rest, prompt_s = shape.uncached_len, 0.0
    decodes = _decode_work(low, context)
    base_s, computed = model.predict_s(decodes), shape.prompt_len - shape.uncached_len
    while rest > 0:
        chunk = min(rest, max(1, shape.max_step_tokens - low))
        is_last = chunk == rest
        prompt_s += model.predict_s(decodes.plus(chunk, computed, is_sampled=is_last)) - base_s
        computed, rest = computed + chunk, rest - chunk
    return decode_s, prompt_s


def _decode_s(model: RooflineModel, batch: int, context: float) -> float:
    return model.predict_s(_decode_work(batch, context)) if batch else 0.0


def _decode_work(batch: int, context: float) -> StepWork:
    return StepWork(
        num_tokens=batch, num_sequences=batch, num_sampled=batch, decode_context_tokens=round(batch * (context + 1))
    )
