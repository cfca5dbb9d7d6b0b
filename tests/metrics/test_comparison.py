"""A difference counts only where the spreads do not overlap."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvist.metrics.comparison import Verdict, compare


def row(name: str, *values: float) -> dict[str, object]:
    return {"rows": [{"name": name, "measured": sorted(values)[len(values) // 2], "values": list(values)}]}


@pytest.mark.parametrize(
    ("name", "values", "verdict"),
    [
        ("tokens_per_second", (20.0, 21.0, 22.0), Verdict.BETTER),
        ("tokens_per_second", (1.0, 2.0, 3.0), Verdict.WORSE),
        ("tokens_per_second", (9.0, 10.5, 30.0), Verdict.WITHIN_SPREAD),
        ("tokens_per_second", (30.0,), Verdict.UNKNOWN),
        ("latency_s", (20.0, 21.0, 22.0), Verdict.WORSE),
    ],
)
def test_repeats_have_a_spread(name: str, values: tuple[float, ...], verdict: Verdict) -> None:
    (compared,) = compare([[row(name, 9.0, 10.0, 11.0)], [row(name, *values)]])
    assert compared.verdicts == [None, verdict]
    assert compared.ratios[1] == sorted(values)[len(values) // 2] / 10.0


def test_files_of_one_side_are_repeats() -> None:
    first = [{"output_throughput": value} for value in (10.0, 12.0, 11.0)]
    second = [{"output_throughput": value} for value in (15.0, 14.0)]
    (compared,) = compare([first, second])
    assert compared.figures[0] is not None
    assert (compared.figures[0].value, compared.figures[0].low, compared.figures[0].high) == (11.0, 10.0, 12.0)
    assert compared.verdicts[1] is Verdict.BETTER


def test_means_and_shares_of_one_run_have_a_spread_of_their_own() -> None:
    def result(ttft_ms: float, attainment: float) -> dict[str, object]:
        return {"mean_ttft_ms": ttft_ms, "std_ttft_ms": 100.0, "completed": 100, "failed": 0,
                "slo_attainment": attainment, "p99_ttft_ms": 9.0}  # fmt: skip

    rows = {row.name: row for row in compare([[result(500, 0.9)], [result(530, 0.5)]])}
    assert rows["mean_ttft_ms"].verdicts[1] is Verdict.WITHIN_SPREAD
    assert rows["slo_attainment"].verdicts[1] is Verdict.WORSE
    assert rows["p99_ttft_ms"].verdicts[1] is Verdict.UNKNOWN


def test_what_a_side_lacks_is_left_open() -> None:
    rows = compare([[{"output_throughput": 0.0, "failed": 1}], [{"output_throughput": 2.0}], [{}]])
    (only,) = rows
    assert only.ratios == [1.0, None, None]
    assert only.verdicts[2] is None


@pytest.mark.parametrize(
    "damaged",
    [
        {"completed": "many", "std_ttft_ms": [1], "mean_ttft_ms": 5},
        {"slo_attainment": 2.0, "completed": 5},
        {"slo_attainment": -1.0, "completed": 5},
        {"completed": [1], "mean_ttft_ms": 5, "std_ttft_ms": True},
        {"rows": 5},
        {"rows": [{"name": "x", "measured": 1, "values": ["a", None]}, {"name": "y", "measured": 1, "values": 5}, 7]},
        {"mean_ttft_ms": float("nan"), "request_throughput": float("inf"), "failed": 10**400},
    ],
)
def test_what_is_no_number_is_not_compared(damaged: dict[str, Any]) -> None:
    for row in compare([[damaged], [damaged]]):
        for figure in row.figures:
            assert figure is not None
            assert math.isfinite(figure.value)
            assert (figure.low, figure.high) == (None, None)
