"""What a server counts about itself, read from /metrics before and after a run."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from kvist.bench.http_connection import HttpServer, StatusError
from kvist.metrics.benchmark_result import ServerChange

TIMEOUT_S = 10.0
Counters = Mapping[str, float]  # sums over all labels
# Of each counter, the names that servers have for it; the first that is there counts.
NAMES: Mapping[str, Sequence[str]] = {
    "preemptions": ("kvist:preemptions_total", "vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "rejections": ("kvist:requests_rejected_total", "vllm:admission_rejections_total"),
    "prompt_tokens": ("kvist:prompt_tokens_total", "vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total"),
    "cached_prompt_tokens": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "draft_tokens": ("kvist:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
    "accepted_tokens": ("kvist:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
}


async def read_counters(server: HttpServer) -> Counters | None:
    """None if the server has no /metrics, or does not answer."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            text = (await server.fetch("GET", "/metrics")).decode("utf-8", errors="replace")
    except (OSError, StatusError):  # a TimeoutError is an OSError
        return None
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name, value = parse_sample(line)
        if name:
            sums[name] = sums.get(name, 0.0) + value
    return sums


def parse_sample(line: str) -> tuple[str, float]:
    """Name and value of a line in Prometheus' text format; ("", 0) for comments and what is no number."""
    if line.startswith("#"):
        return "", 0.0
    name, brace, rest = line.partition("{")
    if not brace:
        name, _, rest = line.partition(" ")
    words = (rest.rpartition("}")[2] if brace else rest).split()
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return "", 0.0
    return (name.strip(), value) if math.isfinite(value) else ("", 0.0)


def server_change(before: Counters | None, after: Counters | None) -> ServerChange:
    """What each counter gained; None where it is not there. A counter that appears began at 0."""
    if before is None or after is None:
        return ServerChange()
    gains: dict[str, int] = {}
    for field, names in NAMES.items():
        name = next((name for name in names if name in after), None)
        if name is not None:
            gains[field] = round(after[name] - before.get(name, 0.0))
    return ServerChange(**gains)
