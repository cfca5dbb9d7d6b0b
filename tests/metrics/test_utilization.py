"""Utilization counts needed work only."""

from __future__ import annotations

import pytest

from kvist.costmodel.step_work import StepWork
from kvist.metrics.step_record import StepRecord
from kvist.metrics.utilization import BestRates, utilization

RATES = BestRates(token_s=0.01, pair_s=0.001, decode_key_s=0.002, sampled_row_s=0.1)


def test_utilization_is_needed_work_at_best_rates_over_time() -> None:
    steps = [
        (StepWork(num_tokens=12, prefill_pairs=20, num_sampled=1), 2),  # 2 of the 12 are padding
        (StepWork(num_tokens=2, decode_context_tokens=50, num_sampled=2), 0),
    ]
    needed_s = (10 * 0.01 + 20 * 0.001 + 0.1) + (2 * 0.01 + 50 * 0.002 + 0.2)
    assert utilization(RATES, steps, 4.0) == pytest.approx(needed_s / 4.0)


def test_the_records_of_a_trace_will_do() -> None:
    record = StepRecord(
        step_id=0, start_s=0.0, duration_s=1.0, num_decode_tokens=2, num_prefill_tokens=0, num_padding_tokens=3,
        num_sampled=2, decode_context_tokens=50,
    )  # fmt: skip
    needed_s = 2 * 0.01 + 50 * 0.002 + 2 * 0.1
    assert utilization(RATES, [(record, record.num_padding_tokens)], 1.0) == pytest.approx(needed_s)
