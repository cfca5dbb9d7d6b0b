"""Results of a benchmark: vLLM's names, failures counted and not averaged in, tokens and not chunks."""

from __future__ import annotations

import pytest

from kvist.metrics.benchmark_result import ServerChange, Statistics, benchmark_result, max_concurrent_requests
from kvist.metrics.percentiles import percentile, standard_deviation
from kvist.metrics.served_request import Outcome, ServedRequest, Targets


def request(
    index: int = 0, *, sent_s: float = 1.0, samples=(((1.5, 1), (2.0, 4), (2.1, 1)),), **fields
) -> ServedRequest:
    ends = [sample[-1][0] for sample in samples if sample] or [sent_s + 0.5]
    defaults = {"finished_s": max(ends), "outcome": Outcome.COMPLETED, "num_prompt_tokens": 10, "num_cached_tokens": 4}
    return ServedRequest(index=index, arrival_s=1.0, sent_s=sent_s, samples=samples, **defaults | fields)


def test_a_chunk_of_several_tokens_gives_each_its_share_of_the_wait() -> None:
    one = request()
    assert one.num_output_tokens == 6
    assert one.ttft_s == pytest.approx(0.5)
    assert one.itls_s() == pytest.approx([0.125] * 4 + [0.1])
    assert one.gaps_s() == pytest.approx([0.5, 0.1])
    assert one.tpots_s() == pytest.approx([0.6 / 5])
    assert sum(one.itls_s()) == pytest.approx(sum(one.gaps_s()))


def test_samples_of_one_request_are_timed_each_for_itself() -> None:
    one = request(samples=(((1.5, 1), (1.7, 1)), ((1.4, 1), (1.8, 1))))
    assert one.ttft_s == pytest.approx(0.4)
    assert one.tpots_s() == pytest.approx([0.2, 0.4])
    assert one.itls_s() == pytest.approx([0.2, 0.4])


def test_failures_are_counted_and_not_averaged_in() -> None:
    failed = request(1, outcome=Outcome.FAILED, error="status 500", samples=(((1.1, 3),),))
    rejected = request(2, outcome=Outcome.REJECTED, error="status 429", samples=())
    result = benchmark_result([request(), failed, rejected], duration_s=2.0, setup={"label": "x"})
    assert (result["completed"], result["failed"], result["rejected"], result["unfinished"]) == (1, 2, 1, 0)
    assert result["errors_by_kind"] == {"status 500": 1, "status 429": 1}
    assert (result["total_input_tokens"], result["total_output_tokens"], result["output_throughput"]) == (10, 6, 3.0)
    assert result["mean_ttft_ms"] == result["p99_ttft_ms"] == pytest.approx(500)
    assert result["label"] == "x"


def test_goodput_counts_those_that_met_every_target_and_attainment_all_that_had_some() -> None:
    tight, loose = Targets(ttft_s=0.4), Targets(ttft_s=0.6, tpot_s=0.2, e2el_s=2.0)
    requests = [
        request(targets=tight),
        request(targets=loose),
        request(targets=Targets(e2el_s=1.0)),
        request(targets=loose, outcome=Outcome.FAILED),
        request(),
    ]
    result = benchmark_result(requests, duration_s=2.0, setup={})
    assert (result["request_goodput"], result["slo_attainment"]) == (0.5, 0.25)
    none = benchmark_result([request()], duration_s=2.0, setup={})
    assert none["slo_attainment"] is None
    assert none["request_goodput"] is None


def test_what_nobody_told_is_null_and_the_servers_counters_stand_in_for_the_answers() -> None:
    silent = [request(num_cached_tokens=None)]
    result = benchmark_result(silent, duration_s=1.0, setup={})
    assert result["cache_hit_share"] is None
    assert result["preemptions"] is None
    told = benchmark_result(
        silent, duration_s=1.0, setup={}, server=ServerChange(preemptions=2, prompt_tokens=8, cached_prompt_tokens=6)
    )
    assert (told["cache_hit_share"], told["preemptions"]) == (0.75, 2)
    assert benchmark_result([request()], duration_s=1.0, setup={})["cache_hit_share"] == 0.4


def test_a_run_without_any_answer_has_a_result() -> None:
    result = benchmark_result([], duration_s=0.0, setup={})
    assert result["completed"] == 0
    assert result["mean_ttft_ms"] is None
    assert result["request_throughput"] is None
    assert result["max_output_tokens_per_s"] == 0


def test_the_asked_for_metrics_and_percentiles_are_there_and_no_others() -> None:
    statistics = Statistics(metrics=("gap",), percentiles=(50.0, 99.9))
    result = benchmark_result([request()], duration_s=1.0, setup={}, statistics=statistics, detailed=True)
    assert {"mean_gap_ms", "median_gap_ms", "std_gap_ms", "p50_gap_ms", "p99.9_gap_ms"} <= set(result)
    assert "mean_ttft_ms" not in result
    assert (result["input_lens"], result["output_lens"], result["start_times"]) == ([10], [6], [1.0])


def test_an_end_and_a_start_at_one_moment_are_not_concurrent() -> None:
    assert max_concurrent_requests([request(sent_s=1.0, finished_s=2.0), request(sent_s=2.0, finished_s=3.0)]) == 1


def test_percentiles_lie_between_their_neighbours() -> None:
    assert percentile([1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([1.0, 2.0, 4.0], 75) == 3.0
    assert percentile([3.0], 99) == 3.0
    assert standard_deviation([1.0, 3.0]) == 1.0
