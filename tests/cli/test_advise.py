"""`kvist advise` as users call it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest
from tests.fakes.planner_cases import profile_table

from kvist.cli import bench_serve, serve
from kvist.cli.main import main
from kvist.config.arguments import ArgumentParser
from kvist.config.load import SERVE_SECTIONS, load_configs

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


def test_advice_for_a_measured_host_is_served_and_driven_by_the_printed_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_bytes(msgspec.json.encode(profile_table()))
    words = ["advise", "--quick", "--profile", str(profile), "--scenario", "chat", "--num-prompts", "10"]
    words += ["--jobs", "1", "--slo", "ttft=2s,tpot=100ms", "--json", str(tmp_path / "advice.json")]

    assert main([*words, "--configs", str(tmp_path)]) == 0

    advice = json.loads((tmp_path / "advice.json").read_text())
    commands, final = advice["commands"], advice["final"]
    assert [row["technique"] for row in advice["taken"]][:2] == ["PagedAttention", "continuous batching"]
    assert "FlashAttention; it does not apply here" in " ".join(advice["compared_with_guide"])
    assert commands["simulated_only"] == ""
    serve_parser = ArgumentParser(prog="kvist serve")
    serve.add_arguments(serve_parser)
    configs = load_configs(serve_parser.parse_known(shlex.split(commands["serve"]["mixed"])[2:]), SERVE_SECTIONS)
    assert f"{configs['scheduler'].policy}, {configs['scheduler'].max_num_batched_tokens} tokens" in final["setup"]
    drive_parser = ArgumentParser(prog="kvist bench serve")
    bench_serve.add_arguments(drive_parser)
    drive_parser.parse_known(shlex.split(commands["drive"])[3:])
    assert commands["drive"] in capsys.readouterr().out
    again = tmp_path / "again.json"
    assert main([*shlex.split(commands["simulate"])[1:], "--json", str(again)]) == 0
    assert json.loads(again.read_text())["event_digest"] == final["event_digest"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("advise", "give --scenario"),
        ("advise --workload sharegpt", "give --scenario"),
        ("advise --scenario shopping", "invalid choice"),
        ("advise --scenario chat --profile /nowhere/at/all", "kvist profile"),
        ("advise --scenario chat --device cpu", "kvist profile"),
        ("advise --scenario chat --configs /nowhere/at/all", "there is no such folder"),
        ("advise --scenario chat --gpus 1 --model llama-3.1-405b", "fit no replica"),
    ],
)
def test_what_cannot_be_advised_on_is_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == 2
    assert said in capsys.readouterr().err
