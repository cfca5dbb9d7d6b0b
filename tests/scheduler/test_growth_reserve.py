"""How much memory admission leaves for growth: the quick answer is the exact one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from kvist.scheduler.preemption import GrowthReserve
from kvist.scheduler.tracked_request import TrackedRequest

COUNTS = st.integers(0, 400)


@dataclass(frozen=True)
class _Running:
    """What growth is told from."""

    num_output_tokens: int
    num_remaining_tokens: int
    num_preemptions: int


RUNNING = st.builds(_Running, COUNTS, COUNTS, st.integers(0, 3))


@given(
    st.lists(RUNNING, max_size=6),
    st.lists(RUNNING, min_size=1, max_size=4),
    st.lists(st.integers(1, 300), max_size=5),
    st.integers(0, 3),
    st.integers(0, 200),
)
def test_whether_growth_fits_is_told_as_if_it_were_added_up(
    running: list[_Running], starting: list[_Running], finished: list[int], preempted: int, num_available: int
) -> None:
    reserve = GrowthReserve(16)
    for num_tokens in finished:
        reserve.note_finished(num_tokens)
    for _ in range(preempted):
        reserve.note_preempted()
    quick, exact = (reserve.tally(cast("list[TrackedRequest]", running)) for _ in range(2))
    for num_taken, each in enumerate(starting):
        candidate = cast("TrackedRequest", each)
        assert quick.fits(candidate, num_taken=num_taken, num_available=num_available) == (
            num_taken + exact.num_blocks(candidate) <= num_available
        )
        quick.add(candidate)
        exact.add(candidate)
