"""The counter-based generator gives fixed bits: these vectors hold for every implementation in any language."""

from __future__ import annotations

import pytest

from kvist.core.random_numbers import philox4x32, seed_for, uniform


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # known answers published with the generator
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_its_published_answers(counter, key, words):
    assert philox4x32(counter, key) == words


@pytest.mark.parametrize(
    ("seed", "sample_index", "position", "value"),
    [
        (0, 0, 0, 0.3990464708489645),
        (0, 0, 1, 0.9722412015223156),
        (0, 1, 0, 0.4172481254010001),
        (1, 0, 0, 0.8902591729757106),
        (-1, 0, 0, 0.4478220364738066),
        (2**63 - 1, 127, 100_000, 0.7053888691251151),
    ],
)
def test_uniform_is_a_fixed_function_of_seed_sample_and_position(seed, sample_index, position, value):
    assert uniform(seed, sample_index, position) == value


def test_uniforms_fill_the_unit_interval_evenly():
    values = [uniform(7, sample, position) for sample in range(8) for position in range(500)]
    assert all(0.0 <= value < 1.0 for value in values)
    counts = [sum(int(value * 10) == tenth for value in values) for tenth in range(10)]
    assert sum((count - 400) ** 2 / 400 for count in counts) < 27.9  # chi-square, 9 degrees of freedom, p = 0.001


def test_requests_without_a_seed_get_different_but_lasting_ones():
    assert seed_for("a", 0) == seed_for("a", 0)
    assert len({seed_for("a", 0), seed_for("b", 0), seed_for("a", 1)}) == 3
