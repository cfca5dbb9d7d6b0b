"""Which rows go through the whole last layer, and where they then stand."""

from __future__ import annotations

from array import array

import pytest

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.execution.native.runner import keep_wanted
from kvist.execution.step_batch import build_batch


def kept(sizes, logit_rows, *, num_padding_tokens=0):
    table = array("i", range(8))
    rows = [([1] * size, 0, table) for size in sizes]
    batch = build_batch(rows, block_size=16, num_padding_tokens=num_padding_tokens)
    return keep_wanted(batch, logit_rows)


def test_of_a_prompt_its_last_row_is_kept():
    assert kept([50], [49]) == ([1], [0])


def test_a_chunk_in_the_middle_of_a_prompt_keeps_nothing():
    assert kept([50, 1, 30], [50]) == ([0, 1, 0], [0])
    assert kept([50], []) == ([0], [])


def test_decodes_and_verified_drafts_keep_all():
    assert kept([1, 4, 1], [0, 1, 2, 3, 4, 5]) == ([1, 4, 1], [0, 1, 2, 3, 4, 5])


def test_rows_after_the_first_wanted_one_are_kept_too():
    assert kept([3, 10], [2, 5, 6, 12]) == ([1, 8], [0, 1, 2, 8])


def test_padding_is_not_kept():
    assert kept([2, 2], [1, 3], num_padding_tokens=5) == ([1, 1, 0, 0], [0, 1])
