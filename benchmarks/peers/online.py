"""Online load over HTTP: requests of the frozen load `chat` at their own times, first and further tokens timed."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.peers.server import Server, StreamTimes, complete
from benchmarks.peers.works import SEED
from kvist.workload.load_file import frozen_loads
from kvist.workload.text_source import TextSource
from kvist.workload.trace_record import TraceRecord

LOAD = "chat"
NUM_REQUESTS = 48  # the load's first ones: the rest would take minutes
MAX_TOKENS = 1500 + 256  # of a prompt and its answer, as the load bounds them


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is ready to be sent at arrival_s."""

    arrival_s: float
    prompt: Sequence[int]
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class OnlineFigures:
    """ttft_p99_s: time to first token; tpot_mean_ms: time per output token after the first."""

    ttft_p99_s: float
    ttft_mean_s: float
    tpot_mean_ms: float
    makespan_s: float


def chat_arrivals(source: TextSource, repeat: int, capacity_per_s: float) -> list[Arrival]:
    """Requests at the load's rate, a share of capacity_per_s; texts and times are of this repeat."""
    records = frozen_loads().load(LOAD).records(capacity_per_s=capacity_per_s, seed=SEED + repeat)
    return [_arrival(source, record) for record in records[:NUM_REQUESTS]]


def all_at_once(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return [Arrival(0.0, arrival.prompt, arrival.num_output_tokens) for arrival in arrivals]


def send(server: Server, arrivals: Sequence[Arrival]) -> OnlineFigures:
    """Send every request at its time, each on a connection and thread of its own, and wait for all."""
    start_s = server.now()

    def one(arrival: Arrival) -> StreamTimes:
        threading.Event().wait(max(0.0, start_s + arrival.arrival_s - time.perf_counter()))
        return complete(server, arrival.prompt, arrival.num_output_tokens)

    with ThreadPoolExecutor(len(arrivals)) as clients:
        times = list(clients.map(one, arrivals))
    return figures(arrivals, times, server.now() - start_s)


def figures(arrivals: Sequence[Arrival], times: Sequence[StreamTimes], makespan_s: float) -> OnlineFigures:
    firsts = sorted(stream.first_s for stream in times)
    later = [
        (stream.last_s - stream.first_s) / (arrival.num_output_tokens - 1)
        for arrival, stream in zip(arrivals, times, strict=True)
        if arrival.num_output_tokens > 1
    ]
    return OnlineFigures(
        ttft_p99_s=firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))],
        ttft_mean_s=statistics.mean(firsts),
        tpot_mean_ms=1e3 * statistics.mean(later),
        makespan_s=makespan_s,
    )


def _arrival(source: TextSource, record: TraceRecord) -> Arrival:
    return Arrival(record.arrival_s, source.prompt(record, _no_answers), record.num_output_tokens)


def _no_answers(index: int) -> Sequence[int]:
    raise AssertionError(f"request {index} follows no other")
