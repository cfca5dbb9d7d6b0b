"""Where the time of a run went, from the records of its steps: by kind of step, by operation, and between steps."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvist.metrics.percentiles import percentile
from kvist.metrics.step_record import STEP_KINDS, StepRecord

OUTSIDE = "outside operations"  # laying out the batch, sampling, everything in Python


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSummary:
    """Steps of one kind. operations_s: of those that were timed, the seconds of each operation, largest first, and of
    what is outside of all; num_timed: how many these are, timed_s: how long they took.
    """

    kind: str
    num_steps: int
    total_s: float
    median_s: float
    p99_s: float
    num_decode_tokens: int
    num_prefill_tokens: int
    num_cached_tokens: int
    num_timed: int
    timed_s: float
    operations_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """wall_s: from the first step's start to the last one's end, times the engines. idle_s: of it, not in any step."""

    num_engines: int
    wall_s: float
    idle_s: float
    kinds: tuple[KindSummary, ...]


@dataclass(slots=True)
class _Sums:
    durations_s: list[float] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    num_timed: int = 0
    timed_s: float = 0.0
    operations_s: Counter[str] = field(default_factory=Counter)


def summarize_steps(steps: Iterable[tuple[int, StepRecord]]) -> TraceSummary:
    """The summary of steps in order, each with the number of its engine. Kinds that did not occur are left out."""
    sums: dict[str, _Sums] = defaultdict(_Sums)
    engines: set[int] = set()
    start_s, end_s = math.inf, -math.inf
    for engine, record in steps:
        engines.add(engine)
        start_s, end_s = min(start_s, record.start_s), max(end_s, record.end_s)
        _add(sums[record.kind], record)
    busy_s = sum(sum(kind.durations_s) for kind in sums.values())
    wall_s = len(engines) * (end_s - start_s) if engines else 0.0
    return TraceSummary(
        num_engines=len(engines),
        wall_s=wall_s,
        idle_s=max(wall_s - busy_s, 0.0),
        kinds=tuple(_kind(kind, sums[kind]) for kind in STEP_KINDS if kind in sums),
    )


def _add(sums: _Sums, record: StepRecord) -> None:
    sums.durations_s.append(record.duration_s)
    for name in ("num_decode_tokens", "num_prefill_tokens", "num_cached_tokens"):
        sums.tokens[name] += getattr(record, name)
    if record.operations:
        sums.num_timed += 1
        sums.timed_s += record.duration_s
        for operation in record.operations:
            sums.operations_s[operation.name] += operation.duration_s  # type: ignore[assignment]  # a Counter of floats


def _kind(kind: str, sums: _Sums) -> KindSummary:
    rising = sorted(sums.durations_s)
    operations_s: dict[str, float] = dict(sums.operations_s.most_common())
    if sums.num_timed:
        operations_s[OUTSIDE] = max(sums.timed_s - sum(operations_s.values()), 0.0)
    return KindSummary(
        kind=kind,
        num_steps=len(rising),
        total_s=sum(rising),
        median_s=percentile(rising, 50.0),
        p99_s=percentile(rising, 99.0),
        num_decode_tokens=sums.tokens["num_decode_tokens"],
        num_prefill_tokens=sums.tokens["num_prefill_tokens"],
        num_cached_tokens=sums.tokens["num_cached_tokens"],
        num_timed=sums.num_timed,
        timed_s=sums.timed_s,
        operations_s=operations_s,
    )
