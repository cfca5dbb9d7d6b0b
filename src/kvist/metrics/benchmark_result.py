"""From the requests of a run to the result that `kvist bench serve` and `kvist simulate` write.

Field names are those of `vllm bench serve`, so that what reads its files reads these. kvist's own besides: `rejected`,
`unfinished`, `cache_hit_share`, `preemptions`, `slo_attainment`, `client_cpu_share`, `client_lag_*`, the `gap` metric.
A figure for which there is no value is null, never 0. Failures are counted, not averaged in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvist.metrics.percentiles import mean, percentile, standard_deviation
from kvist.metrics.served_request import Outcome, ServedRequest

Document = dict[str, Any]  # Any: what JSON holds


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange:
    """What the server's own counters say of the run; None where it has no such counter."""

    preemptions: int | None = None
    rejections: int | None = None
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Which latencies are summed up, and by which percentiles (0 to 100)."""

    metrics: Sequence[str] = ("ttft", "tpot", "itl", "e2el")
    percentiles: Sequence[float] = (90.0, 95.0, 99.0)


METRICS: Mapping[str, Callable[[ServedRequest], Iterable[float]]] = {
    "ttft": lambda request: () if request.ttft_s is None else (request.ttft_s,),
    "tpot": ServedRequest.tpots_s,
    "itl": ServedRequest.itls_s,
    "e2el": lambda request: (request.e2el_s,),
    "gap": ServedRequest.gaps_s,
}


def benchmark_result(
    requests: Sequence[ServedRequest],
    *,
    duration_s: float,
    setup: Mapping[str, Any],
    statistics: Statistics | None = None,
    server: ServerChange | None = None,
    client_cpu_share: float | None = None,
    detailed: bool = False,
) -> Document:
    """The result as JSON holds it.

    duration_s: from the start of the run to its last token. setup: goes first, as it is (date, model_id, ...).
    client_cpu_share: CPU time of the load client / duration, where there is one. detailed: add what each request did.
    """
    statistics = statistics or Statistics()
    done = [request for request in requests if request.is_completed]
    return {
        **setup,
        "duration": duration_s,
        **_counts(requests),
        **_throughput(done, duration_s),
        **_targets(requests, duration_s),
        **_server(done, server or ServerChange()),
        "client_cpu_share": client_cpu_share,
        **_summary("client_lag", [request.sent_s - request.arrival_s for request in requests], statistics.percentiles),
        **{
            name: value
            for metric in statistics.metrics
            for name, value in latency_summary(metric, done, statistics.percentiles).items()
        },
        **(_details(requests) if detailed else {}),
    }


def latency_summary(metric: str, done: Sequence[ServedRequest], percentiles: Sequence[float]) -> Document:
    """mean_, median_, std_ and pXX_ of one of METRICS, in ms, over completed requests."""
    values = [value for request in done for value in METRICS[metric](request)]
    return _summary(metric, values, percentiles)


def max_concurrent_requests(requests: Sequence[ServedRequest]) -> int:
    """The most requests that were open at one moment."""
    changes = [(request.sent_s, 1) for request in requests] + [(request.finished_s, -1) for request in requests]
    most = now = 0
    for _, change in sorted(changes):  # at the same moment an end counts before a start
        now += change
        most = max(most, now)
    return most


def tokens_by_second(requests: Sequence[ServedRequest]) -> list[int]:
    """Output tokens that came in each second of the run."""
    counts: Counter[int] = Counter()
    for request in requests:
        for sample in request.samples:
            for time_s, count in sample:
                counts[int(time_s)] += count
    return [counts[second] for second in range(max(counts, default=-1) + 1)]


def _counts(requests: Sequence[ServedRequest]) -> Document:
    outcomes = Counter(request.outcome for request in requests)
    return {
        "completed": outcomes[Outcome.COMPLETED],
        "failed": outcomes[Outcome.FAILED] + outcomes[Outcome.REJECTED],
        "rejected": outcomes[Outcome.REJECTED],
        "unfinished": outcomes[Outcome.UNFINISHED],
        "errors_by_kind": dict(Counter(request.error for request in requests if request.error).most_common(20)),
        "max_concurrent_requests": max_concurrent_requests(requests),
    }


def _throughput(done: Sequence[ServedRequest], duration_s: float) -> Document:
    num_input = sum(request.num_prompt_tokens for request in done)
    num_output = sum(request.num_output_tokens for request in done)

    def rate(count: float) -> float | None:
        return count / duration_s if duration_s > 0 else None

    return {
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": rate(len(done)),
        "output_throughput": rate(num_output),
        "total_token_throughput": rate(num_input + num_output),
        "max_output_tokens_per_s": float(max(tokens_by_second(done), default=0)),
    }


def _targets(requests: Sequence[ServedRequest], duration_s: float) -> Document:
    """Goodput: requests per second that met all their targets. Attainment: their share of all that had some."""
    aimed = [request for request in requests if request.targets.is_any]
    met = sum(request.meets_targets() for request in aimed)
    return {
        "request_goodput": met / duration_s if aimed and duration_s > 0 else None,
        "slo_attainment": met / len(aimed) if aimed else None,
    }


def _server(done: Sequence[ServedRequest], server: ServerChange) -> Document:
    told = [request for request in done if request.num_cached_tokens is not None]
    num_prompt: int | None = sum(request.num_prompt_tokens for request in told)
    num_cached: int | None = sum(request.num_cached_tokens or 0 for request in told)
    if not told:
        num_prompt, num_cached = server.prompt_tokens, server.cached_prompt_tokens
    fields: Document = {
        "cached_input_tokens": num_cached,
        "cache_hit_share": num_cached / num_prompt if num_prompt and num_cached is not None else None,
        "preemptions": server.preemptions,
        "rejections": server.rejections,
    }
    if server.draft_tokens:
        fields["spec_decode_acceptance_rate"] = (server.accepted_tokens or 0) / server.draft_tokens
    return fields


def _summary(name: str, values: Sequence[float], percentiles: Sequence[float]) -> Document:
    rising = sorted(values)
    fields = {
        f"mean_{name}_ms": mean(rising) * 1e3 if rising else None,
        f"median_{name}_ms": percentile(rising, 50.0) * 1e3 if rising else None,
        f"std_{name}_ms": standard_deviation(rising) * 1e3 if rising else None,
    }
    for percent in percentiles:
        fields[f"p{percent:g}_{name}_ms"] = percentile(rising, percent) * 1e3 if rising else None
    return fields


def _details(requests: Sequence[ServedRequest]) -> Document:
    return {
        "input_lens": [request.num_prompt_tokens for request in requests],
        "output_lens": [request.num_output_tokens for request in requests],
        "cached_lens": [request.num_cached_tokens for request in requests],
        "arrival_times": [request.arrival_s for request in requests],
        "start_times": [request.sent_s for request in requests],
        "end_times": [request.finished_s for request in requests],
        "outcomes": [request.outcome.value for request in requests],
        "ttfts": [request.ttft_s for request in requests],
        "itls": [request.itls_s() for request in requests],
        "met_targets": [request.meets_targets() if request.targets.is_any else None for request in requests],
        "generated_texts": ["".join(request.texts[:1]) for request in requests],
        "errors": [request.error for request in requests],
    }
