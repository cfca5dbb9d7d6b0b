"""Transfers share links evenly or queue; nothing is lost, and no link carries more than it can."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.simulator.links import Links

NS = 1_000_000_000


def ends(links: Links[str]) -> dict[str, int]:
    """Let time pass until all have ended."""
    found: dict[str, int] = {}
    while (time_ns := links.next_end_ns()) is not None:
        for payload in links.take_ended(time_ns):
            found[payload] = time_ns
    return found


def fair(*rates: float, latency_ns: int = 0) -> Links[str]:
    return Links(list(rates), latency_ns=latency_ns, is_fifo=False)


def test_two_transfers_share_a_link_evenly() -> None:
    links = fair(100.0)
    links.begin((0,), 100, 0, "a")
    links.begin((0,), 100, 0, "b")
    assert ends(links) == {"a": 2 * NS, "b": 2 * NS}


def test_who_is_left_gets_the_whole_link() -> None:
    links = fair(100.0)
    links.begin((0,), 50, 0, "short")
    links.begin((0,), 150, 0, "long")
    assert ends(links) == {"short": 1 * NS, "long": 2 * NS}


def test_the_narrowest_link_of_a_path_decides() -> None:
    links = fair(100.0, 10.0)
    links.begin((0, 1), 100, 0, "a")
    assert ends(links) == {"a": 10 * NS}


def test_a_queue_serves_one_after_another() -> None:
    links: Links[str] = Links([100.0], latency_ns=7, is_fifo=True)
    links.begin((0,), 100, 0, "a")
    links.begin((0,), 100, 0, "b")
    assert ends(links) == {"a": NS + 7, "b": 2 * NS + 7}


def test_a_transfer_ends_no_earlier_than_what_it_carries_exists() -> None:
    links = fair(100.0)
    links.begin((0,), 100, 0, "a", not_before_ns=5 * NS)
    assert ends(links) == {"a": 5 * NS}


def test_nothing_to_send_arrives_at_once() -> None:
    links = fair(100.0)
    links.begin((), 0, 3, "a")
    assert ends(links) == {"a": 3}


@pytest.mark.parametrize("is_fifo", [True, False])
@settings(max_examples=40, deadline=None)
@given(
    transfers=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 10**6), st.integers(0, 10**9)),
        min_size=1,
        max_size=15,
    )
)
def test_every_transfer_ends_and_no_link_is_faster_than_it_is(
    is_fifo: bool, transfers: list[tuple[int, int, int, int]]
) -> None:
    rate = 1e6
    links: Links[int] = Links([rate] * 4, latency_ns=0, is_fifo=is_fifo)
    pending = sorted(transfers, key=lambda transfer: transfer[3])
    finished: dict[int, int] = {}
    for number, (first, second, num_bytes, at_ns) in enumerate(pending):
        while (time_ns := links.next_end_ns()) is not None and time_ns <= at_ns:
            finished.update((payload, time_ns) for payload in links.take_ended(time_ns))
        links.begin(tuple(dict.fromkeys((first, second))), num_bytes, at_ns, number)
    while (time_ns := links.next_end_ns()) is not None:
        finished.update((payload, time_ns) for payload in links.take_ended(time_ns))
    assert finished.keys() == set(range(len(pending)))
    for link in range(4):
        mine = [number for number, (first, second, _, _) in enumerate(pending) if link in (first, second)]
        if mine:
            begun = min(pending[number][3] for number in mine)
            span_s = (max(finished[number] for number in mine) - begun) / NS
            assert links.num_bytes[link] == sum(pending[number][2] for number in mine)
            assert links.num_bytes[link] <= rate * span_s * (1 + 1e-9) + 1
