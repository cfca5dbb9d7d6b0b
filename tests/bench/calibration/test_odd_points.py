"""Whatever the cells of a file of points hold, each row gets a number or a reason."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench.calibration.test_predict_points import CHUNKED, DECODE, HEADER, HYBRID, OPEN, PREFILL

from kvist.bench.calibration.points import parse_points
from kvist.bench.calibration.predict_points import predict_points

CELLS = st.sampled_from(
    ["", "0", "-1", "1e308", "nan", "inf", "-inf", "1e-300", "65536", "10000000", "3", "x", "\0", '"', "8,8", "\u2028"]
)
KINDS = st.sampled_from(["static-batch", "linears_only", "throughput", "e2e-serving", "", "hybrid"])


@st.composite
def rows(draw: st.DrawFn) -> str:
    cells = draw(st.sampled_from([DECODE, PREFILL, CHUNKED, HYBRID, OPEN])).split(",")
    for place in draw(st.sets(st.integers(0, len(cells) - 1), max_size=3)):
        cells[place] = draw(KINDS if place == 0 else CELLS)
    return ",".join(cells)


@settings(max_examples=200, deadline=None)
@given(rows())
def test_an_odd_row_is_answered(row: str) -> None:
    for answer in predict_points(parse_points([HEADER, row], "a test"), simulates=False):
        assert answer.why
        assert (answer.predicted is None) == (answer.error_bar is None)
        assert answer.predicted is None or 0.0 < answer.predicted < math.inf
