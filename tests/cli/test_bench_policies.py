"""`kvist bench policies`: the table, the document and the page; equal outputs; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import TinyModel

from kvist.cli.main import main
from kvist.config.scheduler_config import POLICIES


def test_all_policies_are_compared_in_virtual_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "result.json", tmp_path / "page.html"
    words = ["bench", "policies", "--load", "chat", "--virtual", "--quick", "--token-budget", "64,512"]
    assert main([*words, "--json", str(files[0]), "--report", str(files[1])]) == 0
    document = json.loads(files[0].read_text())
    assert {"name", "command", "commit", "machine", "date", "repeats", "rows"} <= document.keys()
    assert document["equal_outputs"] is True
    assert {row["policy"] for row in document["rows"]} == set(POLICIES)
    assert [row["token_budget"] for row in document["rows"] if row["policy"] == "slo_budget"] == [512]
    assert len(document["rows"]) == len(document["results"]) == 2 * len(POLICIES) - 1
    assert all(row["output_throughput"]["median"] > 0 for row in document["rows"])
    assert "<svg" in files[1].read_text()
    assert "All gave the same tokens." in capsys.readouterr().out


def test_the_real_engine_gives_the_same_tokens_under_each_policy(
    tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "policies", "--load", "fixed_16", "--quick", "--policies", "static,slo_budget", "--repeats", "2"]
    path = tmp_path / "result.json"
    assert main([*words, "--model", str(tiny_model("llama", "q4_k_m")), "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["equal_outputs"] is True
    assert document["repeats"] == 2
    assert len(document["results"]) == 4
    assert "repeat 2 of 2" in capsys.readouterr().err


def test_step_times_and_targets_can_be_given(tmp_path: Path) -> None:
    times, path = tmp_path / "times.toml", tmp_path / "result.json"
    times.write_text("[step_time]\nper_step_s = 0.001\nper_token_s = 0.0001\n")
    words = ["bench", "policies", "--load", "fixed_16", "--virtual", str(times), "--policies", "split_fuse"]
    assert main([*words, "--ttft-ms", "1e6", "--tpot-ms", "1e6", "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["slo_attainment"]["median"] == 1.0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--load", "chta"], "Did you mean chat"),
        (["--load", "chat", "--policies", "slo_buget"], "slo_budget"),
        (["--load", "chat", "--token-budget", "8"], "--token-budget"),
        (["--load", "chat", "--virtual", "none.toml"], "none.toml"),
        (["--load", "chat", "--json", "/none/of/it.json"], "folder"),
    ],
)
def test_bad_input_is_explained(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "policies", *words]) == 2
    assert complaint in capsys.readouterr().err
