"""`kvist bench kernels` on tiny models: all kernels of the plan, with numbers that fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TinyModel

pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built in this environment")

from kvist.bench import ceilings
from kvist.cli.main import main


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "MEMORY_BYTES", 4 << 20)


@pytest.mark.parametrize("architecture", ["gemma3", "mixtral"])
def test_every_kind_of_operation_is_timed(architecture: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    words = [str(tiny_model(architecture, "q4_k_m")), "--rows", "1,5", "--contexts", "40", "--json", str(file)]
    assert main(["bench", "kernels", *words]) == 0
    document: dict[str, Any] = json.loads(file.read_text())
    (timed,) = document["setup"].values()
    kernels = document["rows"]
    assert {"name", "command", "commit", "machine", "repeats"} <= document.keys()
    assert all(kernel["measured"] <= kernel["median_s"] and kernel["spread"] >= 0 for kernel in kernels)
    names = {kernel["operation"]["name"] for kernel in kernels}
    assert {"embed", "linear", "attention", "rope_write"} <= names
    assert ("expert_linear" in names) == (architecture == "mixtral")
    for kernel in kernels:
        assert kernel["time_s"] > 0
        assert kernel["gop_per_s"] == pytest.approx(kernel["ops"] / kernel["time_s"] / 1e9)
        assert (kernel["share"] is None) == (kernel["ops"] == 0)
    assert min(timed["ceilings"][name] for name in ("memory_gb_per_s", "int8_gop_per_s", "fp32_gop_per_s")) > 0


def test_kernels_are_drawn_on_a_page_and_results_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, file = tmp_path / "page.html", tmp_path / "kernels.json"
    words = ["--like", "tiny-llama", "--rows", "2", "--contexts", "16", "--quick"]
    assert main(["bench", "kernels", *words, "--report", str(page), "--json", str(file)]) == 0
    for part in ("tiny-llama: kernels", "share of its ceiling", "32 x a decode after 15 tokens", "<svg"):
        assert part in page.read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["bench", "compare", str(file), str(file)]) == 0
    assert "attention, time_s" in capsys.readouterr().out


def test_random_shapes_need_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--like", "tiny-llama", "--format", "q8_0", "--rows", "2", "--contexts", "16"]
    assert main(["bench", "kernels", *words]) == 0
    text = capsys.readouterr().out
    for part in ("Ceilings of this machine", "2 rows", "linear 512 x 64 Q8_0", "32 x a decode after 15 tokens"):
        assert part in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--like", "tiny-lama"], "tiny-llama"),
        (["--like", "tiny-llama", "--format", "hf"], "q4_k_m"),
        (["some.gguf", "--like", "tiny-llama"], "both a model"),
        (["--model", "some.gguf", "--like", "tiny-llama"], "both a model, some.gguf"),
        (["--like", "tiny-llama", "--isa", "sse9"], "portable"),
        (["--like", "tiny-llama", "--rows", "1,0"], "--rows"),
    ],
)
def test_wrong_calls_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", *words]) == 2
    assert message in capsys.readouterr().err
