"""Rows as text, results as documents and back, the page."""

from __future__ import annotations

import json

import pytest

from kvist.core.errors import ConfigError
from kvist.repro.brief import BRIEF_FIGURES
from kvist.repro.page import results_page
from kvist.repro.registry import REPROS, find
from kvist.repro.result import BarPlot, ReproResult, from_document, to_document
from kvist.repro.row import ReproRow
from kvist.repro.table import text_lines

ORIGIN = {
    "commit": "0123456789abcdef",
    "date": "2026-11-30T00:00:00+00:00",
    "machine": {"cpu": "a processor", "num_cores_granted": 2, "isa": "amx", "load_average_1_min": 1.0},
}


def result() -> ReproResult:
    rows = [
        ReproRow(
            name="speed",
            unit="tokens/s",
            measured=230.0,
            baseline=100.0,
            published="2x",
            brief="2.3x",
            spread=0.04,
            equal_output=True,
            setup="a | b",
            why="because",
        ),
        ReproRow(name="TTFT", unit="s", measured=0.5, baseline=1.0, is_change=True, setup="here"),
        ReproRow(name="hit share", unit="%", measured=0.85, setup="there"),
    ]
    plots = [BarPlot(title="speeds", unit="tokens/s", groups=["x"], values={"on": [230.0]})]
    return ReproResult(
        name="radix",
        title="A title",
        setup="So.",
        executor="native amx 2",
        size="quick",
        repeats=3,
        rows=rows,
        plots=plots,
    )


def test_an_effect_is_a_ratio_a_change_or_a_value() -> None:
    effects = [row.effect for row in result().rows]
    assert effects == ["2.30x (100 -> 230 tokens/s), spread 4%", "-50% (1.00 -> 0.500 s)", "85.0%"]
    assert result().rows[0].explanation == "A | b. Because."


def test_a_result_is_read_back_from_its_json_and_rows_carry_their_ratio() -> None:
    document = json.loads(json.dumps(to_document(result())))
    assert document["rows"][0]["ratio"] == pytest.approx(2.3)
    assert from_document(document).rows == result().rows


def test_the_page_shows_each_row_and_where_it_comes_from() -> None:
    page = results_page([to_document(result()) | ORIGIN])
    assert "| speed | 2x | 2.3x | 2.30x (100 -> 230 tokens/s), spread 4%; equal outputs | A \\| b. Because. |" in page
    assert "a processor, 2 cores granted, executor native amx 2, load average 1.0" in page
    assert "Size: quick; 3 repeats, their medians." in page


def test_unequal_outputs_are_shouted() -> None:
    rows = [ReproRow(name="x", unit="%", measured=1.0, equal_output=False, setup="y")]
    lines = text_lines(ReproResult(name="x", title="X", setup="", executor="", size="full", repeats=1, rows=rows))
    assert "OUTPUTS DIFFER" in "\n".join(lines)


def test_an_unknown_reproduction_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"no reproduction 'radx'.*radix"):
        find("radx")


def test_every_figure_of_the_brief_names_a_reproduction() -> None:
    assert {figure.repro for figure in BRIEF_FIGURES} <= set(REPROS)
