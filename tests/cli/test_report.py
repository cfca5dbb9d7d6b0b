"""Stored results become a page; what is none is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvist.bench.trace_report import request_rows
from kvist.cli.main import main
from kvist.cli.policy_table import _COLUMNS
from kvist.core.request import FinishReason
from kvist.core.request_events import Finished, Preempted, Queued, Scheduled, TokensSampled
from kvist.metrics.benchmark_result import benchmark_result
from kvist.metrics.chrome_trace import write_chrome_trace
from kvist.metrics.served_request import Outcome, ServedRequest
from kvist.metrics.step_record import OperationTime, StepPart, StepRecord
from kvist.metrics.trace_reader import read_events
from kvist.repro.result import BarPlot, ReproResult, to_document


def trace_lines() -> list[str]:
    step = StepRecord(
        step_id=0, start_s=1.0, duration_s=0.5, num_decode_tokens=0, num_prefill_tokens=8,
        parts=[StepPart("a", 8, 0)], operations=[OperationTime("linear", 0.3)],
    )  # fmt: skip
    turns: list[Any] = [
        ([Queued("a", 0.5, 8)], None),
        ([Scheduled("a", 1.0, 0), TokensSampled("a", 1.5, [1])], step),
        ([Preempted("a", 1.75, 9), Finished("a", 2.0, FinishReason.ABORT, 8, 1, 0, 1)], None),
    ]
    text: list[str] = []
    write_chrome_trace(text.append, turns, about={"model": "tiny-one"})
    return "".join(text).splitlines(keepends=True)


def run_document(speed: float) -> dict[str, Any]:
    requests = [
        ServedRequest(
            index=i, arrival_s=i, sent_s=i, finished_s=i + 1 / speed, outcome=Outcome.COMPLETED, num_prompt_tokens=9,
            samples=(((i + 0.2 / speed, 1), (i + 0.6 / speed, 1), (i + 1 / speed, 1)),),
        )
        for i in range(5)
    ]  # fmt: skip
    origin = {"command": "kvist bench serve", "commit": "abc", "date": "2026-01-01", "machine": {"cpu": "a cpu"}}
    return benchmark_result(requests, duration_s=6.0, setup=origin, detailed=True)


def test_runs_and_traces_become_one_page(tmp_path: Path) -> None:
    for name, speed in (("slow", 1.0), ("fast", 2.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps(run_document(speed)))
    (tmp_path / "trace.json").write_text("".join(trace_lines()))
    files = [str(tmp_path / name) for name in ("slow.json", "fast.json", "trace.json")]
    assert main(["report", *files, "-o", str(tmp_path / "page.html"), "--title", "Two runs"]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for text in (
        "<h1>Two runs</h1>",
        "Time to first token",
        "slow (n = 5)",
        "fast (n = 5)",
        "a cpu",
        "linear",
        "model tiny-one",
    ):
        assert text in page


def test_a_request_of_a_trace_is_a_row_of_what_it_went_through() -> None:
    (row,) = request_rows(read_events(trace_lines()))
    segments = [(segment.kind, segment.start_s, segment.end_s) for segment in row.segments]
    assert segments == [
        ("queued", 0.0, pytest.approx(0.5)),
        ("prefill", pytest.approx(0.5), pytest.approx(1.0)),
        ("decode", pytest.approx(1.0), pytest.approx(1.25)),
        ("queued", pytest.approx(1.25), pytest.approx(1.5)),
    ]
    assert row.marks_s == [pytest.approx(1.25)]


@pytest.mark.parametrize("text", ["not JSON", "[1, 2]", '{"name": "something else"}', "{}"])
def test_what_is_no_result_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(text)
    assert main(["report", str(tmp_path / "x.json"), "-o", str(tmp_path / "page.html")]) == 2
    assert "x.json" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_papers_and_policies_are_sections_of_the_page(tmp_path: Path) -> None:
    origin = {
        "command": "kvist repro radix", "commit": "0" * 40, "date": "2026-01-01T00:00:00+00:00",
        "machine": {"cpu": "a cpu", "num_cores_granted": 2, "load_average_1_min": 0.5},
    }  # fmt: skip
    result = ReproResult(
        name="radix", title="RadixAttention", setup="One model.", executor="native", size="quick", repeats=3,
        rows=[], plots=[BarPlot(title="Hits", unit="share", groups=["chat"], values={"tree on": [0.9]})],
        notes=["A note."],
    )  # fmt: skip
    row = {name: {"median": 1.0, "min": 0.5, "max": 1.5} for name, _, _ in _COLUMNS}
    policies = {
        "load": "chat", "repeats": 2, "is_virtual": True, "capacity_per_s": 2.0, "equal_outputs": True,
        "rows": [row | {"policy": "static", "token_budget": 64}],
    }  # fmt: skip
    (tmp_path / "radix.json").write_text(json.dumps([origin | to_document(result)]))
    (tmp_path / "policies.json").write_text(json.dumps(origin | policies))
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "radix.json"), str(tmp_path / "policies.json"), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    for part in ("RadixAttention", "Hits", "A note.", "Policies: policies", "static", "Goodput"):
        assert part in text


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (run_document(1.0) | {"completed": [1]}, "Expected `float"),
        (run_document(1.0) | {"ttfts": "abc"}, "Expected `array`"),
        (run_document(1.0) | {"ttfts": [1.0]}, "different lengths"),
        (run_document(1.0) | {"rate_search": {"steps": 5}}, "Expected `array`"),
        ({"title": "x", "setup": "y", "rows": []}, "missing required field"),
        ({"title": "x", "setup": "y", "rows": 5, "name": "z"}, "kvist repro"),
        ({"capacity_per_s": 1.0, "rows": []}, "kvist bench policies"),
        ({"rows": [{"name": "x", "measured": "fast"}]}, "no result"),
        ([1], "no objects"),
    ],
)
def test_results_that_are_damaged_or_of_another_version_are_refused_by_name(
    document: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "r.json", tmp_path / "page.html"
    path.write_text(json.dumps(document))
    assert main(["report", str(path), "-o", str(page)]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert message in said
    assert not page.exists()


def test_what_a_process_measured_of_itself_is_a_table(tmp_path: Path) -> None:
    path, page = tmp_path / "r.json", tmp_path / "page.html"
    row = {"name": "tokens_per_second", "measured": 620.1, "values": [596.0, 644.2]}
    path.write_text(json.dumps({"name": "bench throughput", "rows": [row]}))
    assert main(["report", str(path), "-o", str(page)]) == 0
    assert "620.1 [596, 644.2]" in page.read_text(encoding="utf-8")


def test_a_trace_is_summed_up_in_a_table_a_file_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.json").write_text("".join(trace_lines()))
    words = ["--json", str(tmp_path / "sum.json"), "--report", str(tmp_path / "page.html")]
    assert main(["trace", "summary", str(tmp_path / "trace.json"), *words]) == 0
    document = json.loads((tmp_path / "sum.json").read_text())
    assert (document["name"], document["kinds"][0]["num_prefill_tokens"]) == ("trace summary", 8)
    table = capsys.readouterr().out
    assert "prefill" in table
    assert "linear" in table
    assert "What steps are composed of" in (tmp_path / "page.html").read_text(encoding="utf-8")
    (tmp_path / "empty.json").write_text("")
    assert main(["trace", "summary", str(tmp_path / "empty.json")]) == 0
    assert main(["trace", "summary", str(tmp_path / "none.json")]) == 1
