"""`kvist plan` as users call it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from kvist.cli import serve, simulate
from kvist.cli.main import main
from kvist.config.arguments import ArgumentParser

WORDS = "plan --quick --jobs 1 --gpus 1 --workload service_chat --num-prompts 30 --slo ttft=500ms,tpot=40ms"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("plan")
    files = ["--json", str(folder / "plan.json"), "--config-out", str(folder / "plan.toml")]
    assert main([*shlex.split(WORDS), *files]) == 0
    document = json.loads((folder / "plan.json").read_text())
    assert isinstance(document, dict)
    return document


def test_every_printed_command_is_one_that_kvist_takes(plan: dict[str, object]) -> None:
    commands = plan["commands"]
    assert isinstance(commands, dict)

    for line, module in [(commands["simulate"], simulate), *((each, serve) for each in commands["serve"].values())]:
        parser = ArgumentParser(prog="kvist")
        module.add_arguments(parser)
        parser.parse_known(shlex.split(line)[2:])
    assert "H100" in commands["simulated_only"]


def test_the_printed_simulation_gives_every_event_of_the_plan_again(plan: dict[str, object], tmp_path: Path) -> None:
    commands, winner = plan["commands"], plan["winner"]
    assert isinstance(commands, dict)
    assert isinstance(winner, dict)

    assert main([*shlex.split(commands["simulate"])[1:], "--json", str(tmp_path / "run.json")]) == 0

    run = json.loads((tmp_path / "run.json").read_text())
    assert run["event_digest"] == winner["event_digest"]
    assert run["slo_attainment"] == pytest.approx(winner["attainment"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan --gpus 2 --rate 3 --workload sharegpt --slo ttft=1s", "not allowed with"),
        ("plan --gpus 2 --workload nothing --slo ttft=1s", "no such load"),
        ("plan --gpus 2 --workload sharegpt --slo speed=1s", "ttft"),
        ("plan --gpus 1 --model llama-3.1-405b --workload sharegpt --slo ttft=1s", "does not fit"),
        ("plan --gpus 1 --workload sharegpt --slo ttft=1s --host-cache-gb lots", "write numbers"),
    ],
)
def test_what_cannot_be_planned_is_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == 2
    assert said in capsys.readouterr().err
