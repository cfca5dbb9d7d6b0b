"""What `kvist simulate` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROWS = (
    ("completed", "completed requests", "{:,}"),
    ("rejected", "rejected", "{:,}"),
    ("failed", "failed", "{:,}"),
    ("duration", "virtual time, s", "{:,.1f}"),
    ("request_throughput", "requests/s", "{:,.3f}"),
    ("output_throughput", "output tokens/s", "{:,.1f}"),
    ("cache_hit_share", "prompt tokens from caches", "{:.1%}"),
    ("preemptions", "preemptions", "{:,}"),
    ("slo_attainment", "SLO attainment", "{:.1%}"),
    ("request_goodput", "goodput, requests/s", "{:,.3f}"),
)


def result_lines(document: Mapping[str, Any]) -> list[str]:
    """A short table of the result. Any: what JSON holds."""
    width = max(len(label) for _, label, _ in _ROWS)
    lines = [
        f"{label:<{width}}  {form.format(document[name])}" for name, label, form in _ROWS if document[name] is not None
    ]
    lines.append("")
    lines.append(f"{'ms':<{width}}  {'mean':>10} {'median':>10} {'p90':>10} {'p99':>10}")
    for metric, label in (("ttft", "time to first token"), ("tpot", "time per output token"), ("e2el", "end to end")):
        values = [document[f"{kind}_{metric}_ms"] for kind in ("mean", "median", "p90", "p99")]
        if None not in values:
            lines.append(f"{label:<{width}}  " + " ".join(f"{value:>10,.2f}" for value in values))
    return lines
