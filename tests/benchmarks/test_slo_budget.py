"""What is made of the runs of slo_budget against fixed chunks."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.slo_budget_real import ATTAINMENT, CHUNKS, GOODPUT, OURS, SHARES, VARIANTS, real_summary, verdict

from kvist.workload.load_file import frozen_loads

FIXED = f"chunked_prefill {CHUNKS[1]}"


def repeats(ours: list[float], best: list[float], goodput: float = 1.0) -> list[dict[str, Any]]:
    """Runs in which FIXED has attainment `best` and goodput 1, and other fixed chunks have less."""
    runs = []
    for mine, theirs in zip(ours, best, strict=True):
        run = {variant.label: {ATTAINMENT: 0.1, GOODPUT: 0.1} for variant in VARIANTS}
        run[OURS.label] = {ATTAINMENT: mine, GOODPUT: goodput}
        run[FIXED] = {ATTAINMENT: theirs, GOODPUT: 1.0}
        runs.append(run)
    return runs


@pytest.mark.parametrize(
    ("ours", "best", "goodput", "needs_goodput", "is_kept"),
    [
        ([0.9, 0.9], [0.8, 0.9], 0.5, False, True),
        ([0.8, 0.8], [0.9, 0.9], 0.5, False, False),
        ([0.7, 0.8], [0.8, 0.8], 0.5, False, True),
        ([0.9, 0.9], [0.9, 0.9], 1.2, True, True),
        ([0.9, 0.9], [0.9, 0.9], 1.1, True, False),
        ([0.9], [0.9], 1.2, True, None),
    ],
)
def test_attainment_may_be_lower_by_the_spread_and_goodput_must_be_higher(
    ours: list[float], best: list[float], goodput: float, *, needs_goodput: bool, is_kept: bool | None
) -> None:
    summary = real_summary(repeats(ours, best, goodput))
    assert summary[ATTAINMENT]["best_fixed"] == FIXED
    assert verdict(summary, num_repeats=len(ours), needs_goodput=needs_goodput)["is_kept"] is is_kept


def test_every_frozen_load_has_its_share() -> None:
    assert set(SHARES) == set(frozen_loads().loads)
