"""`kvist calibrate` refuses before the work what could not end well, and fits what can be fitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.calibration.test_predict_points import DECODE, HEADER

from kvist.cli.main import main


def points_file(folder: Path, *rows: str) -> Path:
    file = folder / "points.csv"
    file.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("value", ["-52", "0", "nan", "1e308"])
def test_rows_whose_value_is_none_are_left_out(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = points_file(tmp_path, DECODE, DECODE.replace("52.35", value)), tmp_path / "out.json"
    assert main(["calibrate", "--points", str(source), "--output", str(target), "--quick"]) == 0
    assert target.exists()
    assert "1 of 2 rows" in capsys.readouterr().err


def test_a_file_without_any_row_to_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = points_file(tmp_path, DECODE.replace("52.35", "-1"))
    assert main(["calibrate", "--points", str(source), "--output", str(tmp_path / "out.json")]) == 2
    assert capsys.readouterr().err.startswith("kvist: none of the points")


@pytest.mark.parametrize("flag", ["--output", "--markdown", "--json"])
def test_an_output_that_cannot_be_written_is_refused_at_once(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", flag, str(tmp_path / "none" / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"kvist: {flag} ")
