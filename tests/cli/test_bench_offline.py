"""`kvist bench throughput`, `latency` and `compare`, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TinyModel

from kvist.cli.main import main


def run_json(path: Path, *words: str) -> dict[str, Any]:
    assert main(["bench", *words, "--json", str(path)]) == 0
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def throughput(path: Path, model: Path, *words: str) -> dict[str, Any]:
    return run_json(path, "throughput", str(model), "--num-blocks", "64", *words)


def test_throughput_has_vllms_fields_and_every_repeat(tiny_model: TinyModel, tmp_path: Path) -> None:
    words = ["--num-prompts", "3", "--input-len", "20", "--output-len", "5", "--repeats", "2"]
    result = throughput(tmp_path / "r.json", tiny_model(), *words, "--report", str(tmp_path / "r.html"))
    assert (result["num_requests"], result["total_num_tokens"], result["repeats"]) == (3, 75, 2)
    assert result["tokens_per_second"] == pytest.approx(5 * result["output_tokens_per_second"])
    assert [len(row["values"]) for row in result["rows"]] == [2, 2, 2]
    assert "<svg" in (tmp_path / "r.html").read_text()


def test_latency_has_vllms_fields(tiny_model: TinyModel, tmp_path: Path) -> None:
    words = [
        "--input-len",
        "8",
        "--output-len",
        "4",
        "--batch-size",
        "2",
        "--num-iters",
        "3",
        "--num-iters-warmup",
        "1",
    ]
    result = run_json(tmp_path / "r.json", "latency", str(tiny_model()), "--num-blocks", "64", *words)
    assert len(result["latencies"]) == 3
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 3)
    assert min(result["latencies"]) <= result["percentiles"]["50"] <= max(result["latencies"])


def test_results_are_compared(tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-prompts", "2", "--input-len", "8", "--output-len", "2", "--quick"]
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    throughput(first, tiny_model(), *words)
    throughput(second, tiny_model(), *words)
    document = run_json(tmp_path / "c.json", "compare", str(first), f"{second},{first}")
    assert {"output_tokens_per_second", "requests_per_second"} <= {row["name"] for row in document["rows"]}
    assert document["differing"] == []
    assert "against A" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "a.json"], "at least two"),
        (["compare", "/nowhere/a.json", "/nowhere/b.json"], "cannot read"),
        (["compare", "{empty}", "{empty}"], "no figure in common"),
        (["compare", "{list}", "{list}"], "no JSON object"),
        (["throughput", "{model}", "--load", "agent"], "kvist bench serve"),
        (["throughput", "{model}", "--request-rate", "3"], "--request-rate"),
        (["latency", "{model}", "--batch-size", "0"], "--batch-size"),
    ],
)
def test_wrong_calls_are_refused(
    words: list[str], message: str, tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").write_text("{}")
    (tmp_path / "list").write_text("[]")
    places = {"model": tiny_model(), "empty": tmp_path / "empty", "list": tmp_path / "list"}
    assert main(["bench", *(word.format(**places) for word in words)]) == 2
    assert message in capsys.readouterr().err
