"""Each reproduction, in its quick size, on a tiny random model: all rows, equal outputs, no claims about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import TinyModel

from kvist.cli.main import main
from kvist.repro.registry import REPROS


@pytest.mark.slow
@pytest.mark.parametrize("name", REPROS)
def test_a_quick_run_prints_its_table_and_writes_its_document(
    name: str, tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "result.json"
    words = ["repro", name, "--quick", "--model", str(tiny_model("llama", "q4_k_m")), "--json", str(document)]
    assert main(words) == 0
    result = json.loads(document.read_text())
    assert {"name", "setup", "commit", "machine", "repeats", "rows"} <= result.keys()
    assert result["rows"]
    for row in result["rows"]:
        assert row.keys() >= {"published", "brief", "measured", "baseline", "ratio", "spread", "equal_output"}
        assert row["equal_output"] is not False, row
    assert "published" in capsys.readouterr().out


def test_all_needs_a_folder_for_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "all", "--results", str(tmp_path / "none" / "results.md")]) == 2
    assert "folder does not exist" in capsys.readouterr().err
