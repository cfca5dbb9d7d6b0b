"""Dollars per token."""

from __future__ import annotations

import pytest

from kvist.planner.cost import cost_at


def test_inputs_and_outputs_pay_for_all_devices_together() -> None:
    cost = cost_at(
        num_devices=4,
        price_per_device_hour=2.0,
        rate_per_s=10.0,
        mean_prompt_tokens=1000.0,
        mean_output_tokens=100.0,
        prefill_share=0.25,
    )

    assert cost is not None
    assert cost.per_hour == 8.0
    requests_per_hour = 36_000
    paid = requests_per_hour * (1000 * cost.per_million_input + 100 * cost.per_million_output) / 1e6
    assert paid == pytest.approx(8.0)
    assert cost.per_million_input == pytest.approx(0.25 * 8.0 / 36.0)


def test_a_cluster_that_serves_nothing_has_no_price_per_token() -> None:
    arguments = {"num_devices": 1, "price_per_device_hour": 1.0, "mean_prompt_tokens": 1.0, "mean_output_tokens": 1.0}

    assert cost_at(rate_per_s=0.0, prefill_share=0.5, **arguments) is None  # type: ignore[arg-type]
