"""`kvist inspect` and `kvist make-random-model` on tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import TinyModel

from kvist.cli.main import main


@pytest.mark.parametrize("weight_format", ["q4_k_m", "hf"])
def test_inspect_shows_shape_formats_and_memory(
    weight_format: str, tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_model("gemma3", weight_format)), "--num-blocks", "100"]) == 0
    text = capsys.readouterr().out
    for part in ("gemma3", "KV heads", "chat template  yes", "100 blocks of 16 tokens = 1600 tokens", "KV per token"):
        assert part in text


def test_inspect_as_json_counts_every_byte_and_parameter(
    tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_model("mixtral", "q8_0")), "--json", "--tensors", "--kv-cache-bytes", "1M"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["weight_bytes"] == sum(tensor["num_bytes"] for tensor in report["tensors"])
    assert report["weight_bytes"] == sum(report["bytes_per_format"].values())
    assert sum(layer["count"] for layer in report["spec"]["layers"]) == report["spec"]["num_layers"]
    memory = report["memory"]
    assert memory["num_blocks"] == (1 << 20) // memory["kv_bytes_per_block"]
    assert memory["total_bytes"] == memory["weight_bytes"] + memory["workspace_bytes"] + memory["kv_pool_bytes"]


def test_inspect_counts_a_draft_model(tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    memory = {}
    for words in ([], ["--speculative-model", str(tiny_model("llama", "q8_0"))]):
        assert main(["inspect", str(tiny_model()), "--json", "--num-blocks", "10", *words]) == 0
        memory[bool(words)] = json.loads(capsys.readouterr().out)["memory"]
    assert memory[False]["draft_weight_bytes"] == 0 < memory[True]["draft_weight_bytes"]
    assert memory[True]["kv_bytes_per_token"] > memory[False]["kv_bytes_per_token"]
    assert memory[True]["total_bytes"] > memory[False]["total_bytes"] + memory[True]["draft_weight_bytes"]
    assert main(["inspect", str(tiny_model()), "--num-blocks", "10", *words]) == 0
    assert "draft model" in capsys.readouterr().out


def test_inspect_reads_no_weights(tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tiny_model("llama", "f32")
    assert main(["inspect", str(whole), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    hollow = tmp_path / "hollow.gguf"
    data = whole.read_bytes()
    hollow.write_bytes(data[: len(data) - report["weight_bytes"]] + b"\xff" * report["weight_bytes"])
    assert main(["inspect", str(hollow), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report | {"path": str(hollow)}


@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_inspect_lists_the_plan_without_reading_weights(
    architecture: str, tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kvist.execution.native._native", reason="the native kernels are not built")
    whole = tiny_model(architecture, "q4_k_m")
    assert main(["inspect", str(whole), "--plan"]) == 0
    text = capsys.readouterr().out
    for part in ("GOP per token", "2 x", "rms_norm_quantize", "added to the residual", "workspace"):
        assert part in text
    assert main(["inspect", str(whole), "--plan", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    hollow = tmp_path / "hollow.gguf"
    data = whole.read_bytes()
    hollow.write_bytes(data[: len(data) - report["weight_bytes"]] + b"\xff" * report["weight_bytes"])
    assert main(["inspect", str(hollow), "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == report["plan"]


def test_a_damaged_file_is_refused_in_one_line(
    tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny_model("llama", "q8_0").read_bytes()[:5000])
    assert main(["inspect", str(damaged)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"kvist: {damaged}")
    assert output.err.count("\n") == 1


def test_a_pool_that_cannot_hold_two_blocks_is_refused_with_a_size_that_can(
    tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_model()), "--kv-cache-bytes", "100"]) == 2
    assert "--kv-cache-bytes to" in capsys.readouterr().err


def test_random_models_are_made_equal_from_equal_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    for path, seed in ((first, "1"), (second, "1"), (third, "2")):
        assert main(["make-random-model", str(path), "--like", "tiny-qwen3", "--layers", "1", "--seed", seed]) == 0
    assert capsys.readouterr().out.splitlines() == [str(first), str(second), str(third)]
    assert first.read_bytes() == second.read_bytes() != third.read_bytes()


@pytest.mark.parametrize(("weight_format", "name"), [("q8_0", "tiny-llama-q8_0.gguf"), ("hf", "tiny-llama-hf")])
def test_random_models_name_themselves(
    weight_format: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["make-random-model", "--like", "tiny-llama", "--format", weight_format, "--layers", "1"]) == 0
    assert capsys.readouterr().out == f"{name}\n"
    assert main(["inspect", name, "--num-blocks", "10"]) == 0


def test_random_models_overwrite_only_when_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"precious")
    words = ["make-random-model", str(path), "--like", "tiny-llama", "--layers", "1"]
    assert main(words) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_bytes() == b"precious"
    assert main([*words, "--force"]) == 0
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--like", "tiny-lama"], "tiny-llama"),
        (["--like", "tiny-llama", "--format", "q4"], "q4_1"),
        (["--like", "tiny-llama", "--format", "hf"], "folder"),
        (["--like", "tiny-llama", "--layers", "0"], "at least 1"),
    ],
)
def test_impossible_random_models_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["make-random-model", str(tmp_path / "x.gguf"), *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_write_permission_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    assert main(["make-random-model", str(blocked / "x.gguf"), "--like", "tiny-llama", "--layers", "1"]) == 1
    assert str(blocked) in capsys.readouterr().err
