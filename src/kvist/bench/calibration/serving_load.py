"""The requests of a serving row's load, as records that the simulator plays."""

from __future__ import annotations

from kvist.bench.calibration.load_shape import LoadShape
from kvist.workload.random_stream import RandomStream
from kvist.workload.trace_record import TextPart, TraceRecord

SEED = 20_260
OPEN_REQUESTS, LEAST_OPEN_S = 160, 25.0  # of an open load: so many, or as many as come in so long
FEWEST_ROUNDS = 3
MAX_PROMPT_TOKENS, MAX_STEPS = 250_000, 6_000  # of a closed load: beyond these, fewer rounds stand for all


def serving_records(shape: LoadShape) -> list[TraceRecord]:
    """The load's requests. Lengths and arrivals are drawn by a seed of their own."""
    return _closed(shape) if shape.num_clients else _open(shape)


def _open(shape: LoadShape) -> list[TraceRecord]:
    """Arrivals at even distances, as constant-rate generators send; a prompt is its own after its prefix.

    That they are even shows in what was measured: the 99th percentile of the time to first token is near its mean.
    """
    assert shape.rate_per_s
    stream = RandomStream(SEED, "users")
    number = num_open_requests(shape.rate_per_s)
    prefix_len = shape.prompt_len - shape.uncached_len
    records = []
    for index in range(number):
        time_s = index / shape.rate_per_s
        prefix = int(stream.uniform() * shape.num_prefixes) % shape.num_prefixes
        parts = [TextPart(f"prefix/{prefix}", 0, prefix_len)] if prefix_len else []
        parts.append(TextPart(f"question/{index}", 0, shape.uncached_len))
        records.append(_record(index, time_s, parts, shape.output_len, None))
    return records


def _closed(shape: LoadShape) -> list[TraceRecord]:
    """Each client sends its next request when it has the last one's answer; the first of all come at once."""
    assert shape.num_clients
    clients = shape.num_clients
    rounds = closed_rounds(shape)
    stream = RandomStream(SEED, "lengths")
    records = []
    for turn in range(rounds):
        for client in range(clients):
            index = turn * clients + client
            prompt_len, output_len = (_drawn(length, shape, stream) for length in (shape.prompt_len, shape.output_len))
            parts = [TextPart(f"question/{index}", 0, prompt_len)]
            records.append(_record(index, 0.0, parts, output_len, None if turn == 0 else index - clients))
    return records


def num_open_requests(rate_per_s: float) -> int:
    """Requests of an open load that are simulated."""
    return max(OPEN_REQUESTS, round(LEAST_OPEN_S * rate_per_s))


def closed_rounds(shape: LoadShape) -> int:
    """Requests per client that are simulated: all, or the first, some for all others, and one more to end with."""
    affordable = min(MAX_PROMPT_TOKENS // ((shape.num_clients or 1) * shape.prompt_len), MAX_STEPS // shape.output_len)
    return min(shape.num_rounds, max(FEWEST_ROUNDS, affordable))


def _drawn(mean: int, shape: LoadShape, stream: RandomStream) -> int:
    if shape.longest is not None:
        return max(1, min(shape.longest, round(stream.exponential(mean))))
    return max(1, round(mean * (1.0 + shape.length_spread * (2.0 * stream.uniform() - 1.0))))


def _record(
    index: int, arrival_s: float, parts: list[TextPart], num_output_tokens: int, after: int | None
) -> TraceRecord:
    return TraceRecord(
        index=index, arrival_s=arrival_s, prompt=tuple(parts), num_output_tokens=num_output_tokens, after=after
    )
