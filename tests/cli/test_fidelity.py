"""`kvist fidelity` on a tiny model, in one call and in several."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvist.cli.fidelity import EXIT_PARTS_LEFT
from kvist.cli.main import main

SMALL = ("--quick", "--seconds-per-run", "0.2", "--load", "chat", "--load-factors", "0.7", "--max-num-batched-tokens")


@pytest.mark.slow
def test_a_comparison_is_done_in_parts(
    tiny_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, result, page = tmp_path / "parts", tmp_path / "result.json", tmp_path / "page.html"
    words = ["fidelity", "--model", str(tiny_model("llama", "f32")), *SMALL, "128", "--parts", str(parts)]
    words += ["--json", str(result), "--report", str(page)]
    assert main([*words, "--max-seconds", "0.001"]) == EXIT_PARTS_LEFT
    assert "parts are left" in capsys.readouterr().err
    assert not result.exists()
    assert main(words) == 0
    document = json.loads(result.read_text(encoding="utf-8"))
    assert {cell["load_factor"] for cell in document["cells"]} == {None, 0.7}
    assert all(cell["rows"] and min(cell["step_time_ratios"]) > 0 for cell in document["cells"])
    assert len(document["profile"]["round_levels"]) > 6
    assert "throughput, median error" in capsys.readouterr().out
    assert "<svg" in page.read_text(encoding="utf-8")


def test_what_cannot_be_simulated_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, reason in (
        (["--max-seconds", "3"], "needs --parts FILE"),
        (["--load", "nothing"], "there is no load 'nothing'"),
        (["--load", "parallel_samples"], "no requests of several samples"),
        (["--no-enable-prefix-caching"], "the simulated engine caches prefixes"),
    ):
        assert main(["fidelity", *words]) == 2
        assert reason in capsys.readouterr().err
