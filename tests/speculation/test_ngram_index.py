"""Prompt look-up against a search that looks everywhere."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from kvist.speculation.ngram_index import MAX_CANDIDATES, NgramIndex

TOKENS = st.lists(st.integers(0, 2), max_size=60)


def indexed(token_ids: list[int], *, min_length: int, max_length: int) -> tuple[NgramIndex, array[int]]:
    index, tokens = NgramIndex(min_length=min_length, max_length=max_length), array("i", token_ids)
    index.extend(tokens)
    return index, tokens


def match_length(tokens: list[int], place: int, longest: int) -> int:
    length = 0
    while length < min(longest, place) and tokens[place - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


@given(TOKENS, st.integers(1, 3), st.integers(0, 3), st.integers(1, 8))
def test_the_longest_of_the_latest_matches_is_found(token_ids, min_length, more, max_tokens):
    longest = min_length + more
    index, tokens = indexed(token_ids, min_length=min_length, max_length=longest)
    lengths = [(match_length(token_ids, place, longest), place) for place in range(len(token_ids) - 1, 0, -1)]
    candidates = [(length, place) for length, place in lengths if length >= min_length][:MAX_CANDIDATES]
    found = index.find(tokens, max_tokens)
    if not candidates:
        assert found is None
        return
    best = max(candidates)  # equal lengths: the latest place
    text = list(token_ids)
    for i in range(max_tokens):
        text.append(text[best[1] + i])
    assert found is not None
    assert found.token_ids == text[len(token_ids) :]
    assert found.match_length == best[0]


@given(st.lists(TOKENS, max_size=5))
def test_growing_piece_by_piece_equals_building_at_once(pieces):
    grown, tokens = NgramIndex(min_length=2, max_length=4), array("i")
    for piece in pieces:
        tokens.extend(piece)
        grown.extend(tokens)
    whole, _ = indexed(tokens.tolist(), min_length=2, max_length=4)
    assert grown.find(tokens, 5) == whole.find(tokens, 5)


def test_a_repeated_pattern_is_foretold_beyond_its_end():
    index, tokens = indexed([9, 1, 2, 3, 1, 2, 3, 1], min_length=2, max_length=4)
    found = index.find(tokens, 7)
    assert found is not None
    assert found.token_ids == [2, 3, 1, 2, 3, 1, 2]


def test_nothing_is_found_in_what_never_repeats():
    index, tokens = indexed(list(range(50)), min_length=2, max_length=4)
    assert index.find(tokens, 4) is None


def test_negative_and_large_ids_do_not_mix():
    index, tokens = indexed([1, 256, 1, 0, 7, 1, 256], min_length=2, max_length=2)
    found = index.find(tokens, 2)
    assert found is not None
    assert found.token_ids == [1, 0]
