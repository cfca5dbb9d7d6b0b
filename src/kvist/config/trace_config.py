"""Whether, where and how much the engine writes down of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.config.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    trace: str | None = option(
        None, help="write a trace of every step and request to this file, for ui.perfetto.dev or chrome://tracing"
    )
    trace_on_demand: bool = option(
        False, help="write nothing to --trace until POST /start_profile, and nothing after POST /stop_profile"
    )
    trace_max_bytes: int = option(
        256 << 20,
        help="bytes that a trace and its past may take: at half of it FILE becomes FILE.previous and begins anew",
        low=1 << 16,
        unit="bytes",
    )
    trace_operations_every: int = option(
        128, help="time the kernels of every n-th step of each kind (prefill, decode, mixed); 0: never", low=0
    )
