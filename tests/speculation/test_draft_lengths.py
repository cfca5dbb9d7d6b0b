"""Chances, prices and what follows from them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.speculation.acceptance import FIRST_GUESS, Acceptance
from kvist.speculation.draft_lengths import choose_lengths, expected_tokens
from kvist.speculation.draft_price import FIRST_GUESS_PRICE, DraftPrice

CHANCES = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=6)


def rate(chances, lengths, price, num_base_tokens):
    gained = sum(expected_tokens(chance, length) for chance, length in zip(chances, lengths, strict=True))
    return (num_base_tokens + gained) / (num_base_tokens + price * sum(lengths))


@given(CHANCES, st.floats(0.02, 1.5), st.integers(0, 40), st.integers(0, 30))
def test_lengths_keep_all_limits_and_never_lower_the_rate(chances, price, more, max_tokens):
    num_base_tokens = len(chances) + more
    limits = [3 + i for i in range(len(chances))]
    lengths = choose_lengths(chances, limits, price=price, num_base_tokens=num_base_tokens, max_tokens=max_tokens)
    assert sum(lengths) <= max_tokens
    assert all(0 <= length <= limit for length, limit in zip(lengths, limits, strict=True))
    assert rate(chances, lengths, price, num_base_tokens) >= 1.0 - 1e-9


@given(st.floats(0.05, 0.95), st.floats(0.05, 0.9))
def test_one_request_gets_nearly_the_best_length(chance, price):
    lengths = choose_lengths([chance], [8], price=price, num_base_tokens=1, max_tokens=8)
    best = max(rate([chance], [length], price, 1) for length in range(9))
    assert rate([chance], lengths, price, 1) >= 0.93 * best


@pytest.mark.parametrize(
    ("chance", "price", "expected"), [(0.9, 0.05, 8), (0.3, 0.5, 0), (0.99, 1.0, 0), (0.5, 0.3, 1)]
)
def test_drafts_pay_where_they_are_likely_and_cheap(chance, price, expected):
    assert choose_lengths([chance], [8], price=price, num_base_tokens=1, max_tokens=8) == [expected]


@given(CHANCES)
def test_the_likeliest_drafts_get_the_room(chances):
    limits = [4] * len(chances)
    kept = choose_lengths(chances, limits, price=0.0, num_base_tokens=1, max_tokens=5)
    assert sum(kept) == min(5, 4 * len(chances))
    for one, other in itertools.permutations(range(len(chances)), 2):
        if kept[one] > 0 and kept[other] < 4:
            assert chances[one] ** kept[one] >= chances[other] ** (kept[other] + 1) - 1e-12


def test_acceptance_follows_what_happens_and_tells_strengths_apart():
    of_all = Acceptance()
    mine, other = Acceptance(of_all), Acceptance(of_all)
    assert mine.chance(2) == FIRST_GUESS
    for _ in range(30):
        mine.note(2, num_draft_tokens=4, num_accepted_tokens=4)
        mine.note(3, num_draft_tokens=4, num_accepted_tokens=0)
    assert mine.chance(2) > 0.9
    assert mine.chance(3) < 0.15
    assert other.chance(2) > 0.8  # the next request starts from what the others saw
    for _ in range(10):
        mine.note(2, num_draft_tokens=4, num_accepted_tokens=0)
    assert mine.chance(2) < 0.5


def test_tokens_after_a_refused_one_count_for_nothing():
    one, other = Acceptance(), Acceptance()
    one.note(0, num_draft_tokens=8, num_accepted_tokens=2)
    other.note(0, num_draft_tokens=3, num_accepted_tokens=2)
    assert one.chance(0) == other.chance(0)


@pytest.mark.parametrize(("base", "base_ms", "draft_ms"), [(1, 8.0, 1.0), (8, 16.0, 1.5), (40, 40.0, 1.0)])
def test_the_price_is_found_from_step_times(base, base_ms, draft_ms):
    price = DraftPrice()
    assert price.at(base) == FIRST_GUESS_PRICE
    for i in range(60):
        num_drafts = i % 5
        noise = 1.0 + 0.05 * ((i * 7 % 11) / 5 - 1)
        price.note(
            num_base_tokens=base,
            num_draft_tokens=num_drafts,
            step_time_s=noise * (base_ms + draft_ms * num_drafts) / 1e3,
        )
    assert price.is_known(base)
    assert price.at(base).of(4) == pytest.approx(4 * base * draft_ms / base_ms, rel=0.25)
    assert price.at(base + 3).per_draft > 0.0


def test_the_price_survives_long_runs_of_equal_steps():
    price = DraftPrice()
    for num_drafts in (0, 4, 0, 4, 0, 4, 0, 4):
        price.note(num_base_tokens=1, num_draft_tokens=num_drafts, step_time_s=0.01 + 0.002 * num_drafts)
    before = price.at(1)
    for _ in range(200):
        price.note(num_base_tokens=1, num_draft_tokens=4, step_time_s=0.018)
    assert price.at(1).of(4) == pytest.approx(before.of(4), rel=0.05)


def test_a_step_that_costs_more_for_any_drafts_at_all_has_a_fixed_price():
    price = DraftPrice()
    for i in range(60):
        num_drafts = i % 5
        step_time_s = 0.006 + (0.003 + 0.0001 * num_drafts if num_drafts else 0.0)
        price.note(num_base_tokens=4, num_draft_tokens=num_drafts, step_time_s=step_time_s)
    assert price.at(4).fixed == pytest.approx(2.0, rel=0.1)
    assert price.at(4).per_draft == pytest.approx(4 * 0.1 / 6, rel=0.2)


def test_drafts_that_do_not_earn_the_fixed_price_together_are_not_made():
    def chosen(chances: list[float]) -> list[int]:
        return choose_lengths(chances, [6] * 4, price=0.07, fixed_price=2.0, num_base_tokens=4, max_tokens=64)

    assert chosen([0.6, 0.0, 0.0, 0.0]) == [0, 0, 0, 0]
    assert sum(chosen([0.6, 0.6, 0.6, 0.6])) > 4


def test_drafts_of_one_request_must_earn_more_where_others_wait() -> None:
    def chosen(num_base_tokens: int) -> int:
        return choose_lengths([0.5], [1], price=0.38, num_base_tokens=num_base_tokens, max_tokens=64)[0]

    assert (chosen(1), chosen(4)) == (1, 0)


def test_one_step_that_was_held_up_does_not_spoil_the_price():
    price = DraftPrice()
    for i in range(40):
        price.note(num_base_tokens=1, num_draft_tokens=i % 4, step_time_s=0.01 + 0.001 * (i % 4))
    before = price.at(1)
    price.note(num_base_tokens=1, num_draft_tokens=3, step_time_s=5.0)
    assert price.at(1).of(3) < before.of(3) + 0.9
