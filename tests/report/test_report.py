"""Reports are one file that needs nothing else, shows its numbers as tables, and holds no text as markup."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvist.core.errors import ConfigError
from kvist.metrics.step_record import StepRecord
from kvist.report import (
    Plot,
    Report,
    Segment,
    TimelineRow,
    bar_plot,
    cdf_plot,
    heat_map,
    line_plot,
    require_plots,
    stacked_area,
    step_composition,
    timeline,
    waterfall,
)
from kvist.report.area_plots import bin_steps
from kvist.report.plot import format_cell


def steps() -> list[StepRecord]:
    return [
        StepRecord(
            step_id=i, start_s=0.1 * i, duration_s=0.05, num_decode_tokens=i % 3, num_prefill_tokens=64 * (i % 2),
            num_cached_tokens=16 if i == 7 else 0,
        )
        for i in range(50)
    ]  # fmt: skip


def rows(count: int) -> list[TimelineRow]:
    return [
        TimelineRow(f"r{i}", [Segment(i, i + 1, "queued"), Segment(i + 1, i + 2, "decode")], [i + 1.5])
        for i in range(count)
    ]


def plots() -> list[Plot]:
    return [
        cdf_plot("cdf <&>", {"a": [3.0, 1.0, 2.0], "b": [5.0] * 3000, "none": []}, x_label="ms", target=4.0),
        cdf_plot("log cdf", {"a": [1.0, 1000.0]}, x_label="ms", log=True),
        line_plot("lines", {"a": [(1, 0.5), (2, 0.7)], "b": [(2, 0.1)]}, x_label="rate", y_label="share", target=0.9),
        bar_plot("bars", ["x", "y"], {"a": [1.0, None], "b": [2.0, 0.0]}, y_label="ratio", errors={"b": [0.1, None]}),
        waterfall("waterfall", [("a", 3.0), ("b", -1.0)], y_label="ms"),
        stacked_area("areas", [0, 1, 2], {"a": [1, 2], "b": [0, 1]}, x_label="s", y_label="tokens"),
        step_composition("steps", steps()),
        step_composition("no steps", []),
        timeline("few", rows(3)),
        timeline("many", rows(500)),
        timeline("nobody", []),
        heat_map("heat", ["1", "2"], ["a"], [[0.5, None]], x_label="x", y_label="y", value_label="share"),
    ]


def test_a_report_needs_no_other_file_and_every_drawing_is_well_formed() -> None:
    report = Report("All <plots>", facts={"command": "kvist bench & more"})
    for plot in plots():
        report.add_plot(plot, caption="a caption")
    page = report.to_html()
    links = set(re.findall(r'(?:href|src)="([^"]*)"', page)) | set(re.findall(r"url\(([^)]*)\)", page))
    assert links
    assert all(link.startswith("#") for link in links)
    assert "<script" not in page
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == len(plots())
    for drawing in drawings:
        assert ElementTree.fromstring(drawing.replace("xlink:href", "href")).get("role") == "img"
    assert "All &lt;plots&gt;" in page
    assert "kvist bench &amp; more" in page


def test_ids_of_a_page_are_unique() -> None:
    report = Report("ids")
    for plot in plots():
        report.add_plot(plot)
    ids = re.findall(r' id="([^"]+)"', report.to_html())
    assert len(ids) == len(set(ids))


def test_the_same_numbers_give_the_same_page() -> None:
    assert [plot.svg for plot in plots()] == [plot.svg for plot in plots()]


def test_a_large_plot_stays_light() -> None:
    many = {name: [float(i % 977) for i in range(20_000)] for name in "abcd"}
    assert len(cdf_plot("cdf", many, x_label="ms").svg) < 100_000
    assert len(timeline("many", rows(5000)).svg) < 300_000


def test_tables_beside_plots_hold_the_numbers() -> None:
    plot = cdf_plot("cdf", {"a": [1.0, 2.0, 3.0]}, x_label="ms")
    assert plot.headers == ("", "n", "P50", "P90", "P95", "P99", "max")
    assert plot.rows[0][:3] == ["a", 3, 2.0]
    line = line_plot("lines", {"a": [(1, 0.5), (2, 0.7)], "b": [(2, 0.1)]}, x_label="x", y_label="y")
    assert line.rows == [[1, 0.5, None], [2, 0.7, 0.1]]
    (prefill, decode, mixed, empty) = step_composition("steps", steps()).rows
    assert [row[0] for row in (prefill, decode, mixed, empty)] == ["prefill", "decode", "mixed", "empty"]
    assert sum(int(row[1] or 0) for row in (prefill, decode, mixed, empty)) == 50
    assert timeline("few", rows(1)).rows == [["r0", 0, 1, 1, 2]]


def test_a_long_step_fills_its_time_and_idle_time_is_empty() -> None:
    records = [
        StepRecord(step_id=0, start_s=10.0, duration_s=2.0, num_decode_tokens=3, num_prefill_tokens=5),
        StepRecord(step_id=1, start_s=13.0, duration_s=1.0, num_decode_tokens=4, num_prefill_tokens=0),
    ]
    assert bin_steps(records, 4) == {
        "decode": [3, 3, 0, 4], "prefill": [5, 5, 0, 0], "draft": [0] * 4, "padding": [0] * 4, "cached": [0] * 4
    }  # fmt: skip


def test_tables_escape_text_and_mark_numbers() -> None:
    report = Report("table")
    report.add_table(["<a>", "b"], [["x & y", 1234567], ["z", None]], caption="<c>")
    page = report.to_html()
    assert '<th scope="col">&lt;a&gt;</th>' in page
    assert '<td class="number">1,234,567</td>' in page
    assert '<th scope="row">x &amp; y</th>' in page
    assert "<caption>&lt;c&gt;</caption>" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0"), (12345.6, "12,346"), (123.45, "123.5"), (1.234, "1.23"), (0.01234, "0.0123"), ("t", "t")],
)
def test_numbers_show_what_matters(value: float | str | None, text: str) -> None:
    assert format_cell(value) == text


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'kvist\[report\]'"):
        require_plots()


def test_a_report_is_written_as_utf_8(tmp_path: Path) -> None:
    report = Report("Zürich – 東京")
    report.add_text("first\n\nsecond")
    report.write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "東京" in page
    assert "<p>first</p>\n<p>second</p>" in page
