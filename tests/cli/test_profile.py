"""`kvist profile` on a tiny model: a file that the simulator reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvist.cli.main import main
from kvist.costmodel.profile_table import ProfileModel, parse_profile
from kvist.costmodel.step_work import StepWork


@pytest.mark.slow
def test_a_profile_of_a_real_executor_is_written_and_read(
    tiny_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = tmp_path / "profile.json", tmp_path / "profile.html"
    words = ["profile", str(tiny_model("llama", "f32")), "--quick", "--output", str(file), "--report", str(page)]
    assert main(words) == 0
    table = parse_profile(file.read_bytes(), str(file))
    assert len(table.points) > 15
    assert ProfileModel(table).predict_s(StepWork.of([(1, 100)] * 4, num_sampled=4)) > 0.0
    assert "9 of 10 within" in capsys.readouterr().out
    assert "<svg" in page.read_text(encoding="utf-8")
