"""`kvist advise` as users call it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from kvist.cli.main import main

WORDS = "advise --quick --scenario chat --gpus 1 --device L4 --num-prompts 10"


def test_every_row_can_be_simulated_again_to_the_last_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "advice.json"), "--configs", str(tmp_path)]

    assert main([*shlex.split(WORDS), *files]) == 0

    advice = json.loads((tmp_path / "advice.json").read_text())
    assert [row["technique"] for row in advice["taken"]][:3] == ["FlashAttention", "PagedAttention", "GQA"]
    assert advice["compared_with_guide"]
    assert "plain baseline" in capsys.readouterr().out
    for row in (advice["baseline"], advice["final"]):
        again = tmp_path / "again.json"
        assert main([*shlex.split(row["simulate"])[1:], "--json", str(again)]) == 0
        assert json.loads(again.read_text())["event_digest"] == row["event_digest"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("advise", "give --scenario"),
        ("advise --workload sharegpt", "give --scenario"),
        ("advise --scenario shopping", "invalid choice"),
        ("advise --scenario chat --profile profile.json", "kvist plan --profile"),
        ("advise --scenario chat --configs /nowhere/at/all", "there is no such folder"),
        ("advise --scenario chat --gpus 1 --model llama-3.1-405b", "fit no replica"),
    ],
)
def test_what_cannot_be_advised_on_is_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == 2
    assert said in capsys.readouterr().err
