"""The result of `kvist bench serve` as lines to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NAMES = {
    "ttft": "TTFT, time to first token",
    "tpot": "TPOT, time per output token",
    "itl": "ITL, between tokens",
    "gap": "gap between chunks",
    "e2el": "end to end",
}
BUSY_SHARE, LATE_MS = 0.8, 5.0


def result_lines(result: Mapping[str, Any]) -> list[str]:
    return [*_head(result), *_rates(result), *_latencies(result), *_quality(result), *_warnings(result)]


def _head(result: Mapping[str, Any]) -> Iterator[str]:
    rate = result["request_rate"]
    shown = "all at once" if rate == "inf" else f"{rate:.3g} requests/s"
    most = f", at most {result['max_concurrency']} at once" if result["max_concurrency"] else ""
    yield f"{result['model_id']} at {result['base_url']}{result['endpoint']}, load {result['load']}: {shown}{most}"
    counts = f"{result['completed']} completed, {result['failed']} failed"
    if result["rejected"]:
        counts += f" ({result['rejected']} rejected)"
    if result["unfinished"]:
        counts += f", {result['unfinished']} unfinished"
    yield f"  {counts} in {result['duration']:.1f} s, at most {result['max_concurrent_requests']} at once"
    for error, count in result["errors_by_kind"].items():
        yield f"    {count} x {error}"


def _rates(result: Mapping[str, Any]) -> Iterator[str]:
    for what, key, unit in (
        ("requests", "request_throughput", "/s"),
        ("output tokens", "output_throughput", "/s"),
        ("all tokens", "total_token_throughput", "/s"),
        ("most output tokens in a second", "max_output_tokens_per_s", ""),
    ):
        if result[key] is not None:
            yield f"  {what:<32} {result[key]:>10.4g}{unit}"
    yield f"  {'tokens in, out':<32} {result['total_input_tokens']:>10,}, {result['total_output_tokens']:,}"


def _latencies(result: Mapping[str, Any]) -> Iterator[str]:
    metrics = [metric for metric in NAMES if result.get(f"mean_{metric}_ms") is not None]
    if not metrics:
        return
    columns = [key.split("_")[0] for key in result if key.endswith(f"_{metrics[0]}_ms")]
    yield f"  {'ms':<28}" + "".join(f" {column:>9}" for column in columns)
    for metric in metrics:
        values = "".join(f" {result[f'{column}_{metric}_ms']:>9.2f}" for column in columns)
        yield f"  {NAMES[metric]:<28}{values}"


def _quality(result: Mapping[str, Any]) -> Iterator[str]:
    if result["slo_attainment"] is not None:
        targets = ", ".join(f"{name} {value}" for name, value in result["targets"].items())
        yield (
            f"  {result['slo_attainment']:.1%} within the targets ({targets}): goodput"
            f" {result['request_goodput']:.4g} requests/s"
        )
    if result["cache_hit_share"] is not None:
        yield f"  {result['cache_hit_share']:.1%} of prompt tokens came from the cache"
    for key in ("preemptions", "rejections"):
        if result[key]:
            yield f"  {result[key]} {key} by the server's count"
    search = result.get("rate_search")
    if search:
        yield from _search(search)


def _search(search: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {'requests/s':>12} {'attainment':>11} {'95% interval':>16} {'requests':>9}"
    for step in search["steps"]:
        share = step["good"] / step["total"] if step["total"] else 0.0
        interval = f"{step['low']:.1%} - {step['high']:.1%}"
        yield f"  {step['rate_per_s']:>12.4g} {share:>11.1%} {interval:>16} {step['total']:>9}"
    largest, following = search["max_rate_per_s"], search["next_rate_per_s"]
    if largest is None:
        yield "  no measured rate kept the targets"
        return
    line = f"  largest rate that kept the targets: {largest:.4g} requests/s"
    if following is not None:
        line += f"; {following:.4g} did not"
    yield line
    low, high = search["low_rate_per_s"], search["high_rate_per_s"]
    sure = f"{low:.4g}" if low is not None else "?", f"{high:.4g}" if high is not None else "?"
    yield f"  with 95% confidence it lies between {sure[0]} and {sure[1]}"


def _warnings(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"  tokens counted by: {result['token_counting']}"
    if (result["client_cpu_share"] or 0.0) > BUSY_SHARE:
        yield f"  the client itself used {result['client_cpu_share']:.0%} of a core: its figures may be its own"
    late = result.get("median_client_lag_ms")
    if result["max_concurrency"] is None and late is not None and late > LATE_MS:
        yield f"  half of the requests were sent {late:.1f} ms late or more: the machine was busy"
    if not result["ignore_eos"]:
        yield "  answers may be shorter than the load says: the server takes no ignore_eos, or was not asked"
    if result["server_was_lost"]:
        yield "  THE SERVER WAS GONE at the end: this is what was measured until then"
    if result["was_stopped"]:
        yield "  stopped before its end"
