"""`kvist predict` writes pages, and predicts this host from a profile."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.bench.calibration.test_predict_points import DECODE, HEADER
from tests.costmodel.test_profile_table import TABLE

from kvist.cli.main import main


def test_a_step_on_this_host_is_predicted_from_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(msgspec.json.encode(TABLE))
    assert main(["predict", "--profile", str(file), "--batch", "8", "--context", "99"]) == 0
    assert capsys.readouterr().out.startswith("step time 7.78 ms")
    assert main(["predict", "--profile", str(tmp_path / "none.json")]) == 2


def test_pages_hold_the_parts_and_the_points(tmp_path: Path) -> None:
    step, points, source = tmp_path / "step.html", tmp_path / "points.html", tmp_path / "points.csv"
    source.write_text(f"{HEADER}\n{DECODE}\nrubbish\n", encoding="utf-8")
    assert main(["predict", "--report", str(step)]) == 0
    assert "decode attention" in step.read_text(encoding="utf-8")
    assert main(["predict", "--points", str(source), "--report", str(points)]) == 0
    assert "decode_step_ms" in points.read_text(encoding="utf-8")
