"""What comparisons of policies are built from."""

from __future__ import annotations

import pytest

from kvist.bench.load_run import LoadRun, RequestRun
from kvist.bench.policy_comparison import served_requests
from kvist.bench.unloaded_latency import levels_of, measured_latency, targets_of
from kvist.metrics.served_request import Targets
from kvist.metrics.unloaded_latency import UnloadedLatency
from kvist.workload.load_file import ServiceLevel, frozen_loads
from kvist.workload.shortening import shortened
from kvist.workload.trace_record import TextPart, TraceRecord


def test_a_shortened_load_has_a_share_of_requests_or_of_seconds() -> None:
    loads = frozen_loads()
    assert len(shortened(loads.load("chat"), 0.1).records(capacity_per_s=1.0)) == 24
    assert len(shortened(loads.load("chat"), 0.01, least=40).records(capacity_per_s=1.0)) == 40
    assert len(shortened(loads.load("fixed_16"), 0.1, least=40).records(capacity_per_s=1.0)) == 16  # it has no more
    whole = loads.load("changing").records(capacity_per_s=5.0)
    part = shortened(loads.load("changing"), 0.25).records(capacity_per_s=5.0)
    assert part[-1].arrival_s < 20.0
    assert len(part) == pytest.approx(len(whole) / 4, rel=0.3)


def test_unloaded_latencies_lie_on_straight_lines_between_measured_lengths() -> None:
    latency = UnloadedLatency(ttft=[(16, 1.0), (116, 2.0), (216, 4.0)], tpot=[(16, 0.1), (216, 0.3)])
    assert latency.ttft_s(66) == pytest.approx(1.5)
    assert latency.ttft_s(316) == pytest.approx(6.0)
    assert latency.tpot_s(106, 20) == pytest.approx(0.2)


def test_targets_are_multiples_of_what_a_request_takes_alone_or_what_is_given() -> None:
    latency = UnloadedLatency(ttft=[(0, 0.0), (100, 1.0)], tpot=[(0, 0.0), (100, 0.1)])
    record = TraceRecord(index=0, arrival_s=0.0, prompt=(TextPart("a", 0, 50),), num_output_tokens=20)
    level = ServiceLevel(ttft_multiple=5.0, tpot_multiple=3.0, attainment=0.9)
    targets = targets_of(levels_of(level), latency)(record, 50)
    assert (targets.ttft_s, targets.tpot_s) == (pytest.approx(2.5), pytest.approx(0.18))
    given = targets_of(levels_of(level, ttft_ms=70.0, tpot_ms=9.0), None)
    assert given(record, 50) == Targets(ttft_s=0.07, tpot_s=0.009)


def test_the_shortest_of_the_repeats_counts_and_no_length_is_slower_than_a_longer_one() -> None:
    ttfts = iter([5.0, 3.0, 4.0, 9.0, 8.0, 2.0])
    latency = measured_latency(lambda size: (next(ttfts), 0.1), max_tokens=1024, num_output_tokens=9, num_repeats=2)
    assert [seconds for _, seconds in latency.ttft] == [2.0, 2.0, 2.0]


def test_a_run_is_seen_as_by_a_client_with_samples_and_tokens_that_come_together() -> None:
    def sample(index: int, sample_index: int, times_s: list[float]) -> RequestRun:
        return RequestRun(
            index, sample_index, 1.0, [1, 2, 3], token_ids=[0] * len(times_s), token_times_s=times_s, finished_s=9.0
        )

    run = LoadRun([sample(0, 0, [2.0, 3.0, 3.0]), sample(0, 1, [2.5]), sample(1, 0, [4.0])], [], [], 9.0)
    first, second = served_requests(run)
    assert first.samples == [[(2.0, 1), (3.0, 2)], [(2.5, 1)]]
    assert (first.ttft_s, first.num_output_tokens, second.ttft_s) == (1.0, 4, 3.0)
