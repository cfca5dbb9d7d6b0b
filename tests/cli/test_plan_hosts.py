"""`kvist plan --profile` as users call it: plans for CPU hosts, and what they print."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.fakes.planner_cases import profile_table

from kvist.cli import bench_serve, serve, simulate
from kvist.cli.load_arguments import chosen_requests
from kvist.cli.main import main
from kvist.config.arguments import ArgumentParser
from kvist.config.load import SERVE_SECTIONS, load_configs
from kvist.planner.plan_load import draws_of_load
from kvist.workload.load_file import shipped_loads

GOAL = "--gpus 1 --workload chat --num-prompts 30 --slo ttft=1500ms,tpot=80ms"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(profile_table()))
    return path


@pytest.fixture
def plan(profile: Path, tmp_path: Path) -> dict[str, object]:
    files = ["--json", tmp_path / "plan.json", "--config-out", tmp_path / "plan.toml"]
    files += ["--serve-config-out", tmp_path / "serve.toml", "--profile", profile]
    assert main(["plan", "--quick", "--jobs", "1", *shlex.split(GOAL), *map(str, files)]) == 0
    document = json.loads((tmp_path / "plan.json").read_text())
    assert isinstance(document, dict)
    return document


def test_the_printed_server_is_the_engine_that_was_simulated(plan: dict[str, object], tmp_path: Path) -> None:
    commands, winner = plan["commands"], plan["winner"]
    assert isinstance(commands, dict)
    assert isinstance(winner, dict)
    assert commands["simulated_only"] == ""
    configs = _serve_configs(shlex.split(commands["serve"]["mixed"])[2:])

    assert configs["model"].model == "smollm2-135m"
    assert configs["executor"].num_threads == 2
    assert configs["cache"].max_total_tokens == winner["kv_cache_tokens"]
    assert configs["cache"].enable_prefix_caching == winner["enable_prefix_caching"]
    scheduler = configs["scheduler"]
    assert (scheduler.policy, scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == (
        winner["policy"], winner["token_budget"], winner["max_num_seqs"],
    )  # fmt: skip
    if scheduler.policy == "slo_budget":
        assert (scheduler.default_ttft_ms, scheduler.default_tpot_ms) == (1500.0, 80.0)
    assert _serve_configs(["--config", str(tmp_path / "serve.toml")]) == configs


def test_the_printed_simulation_gives_every_event_of_the_plan_again(plan: dict[str, object], tmp_path: Path) -> None:
    commands, winner = plan["commands"], plan["winner"]
    assert isinstance(commands, dict)
    assert isinstance(winner, dict)
    _parsed(simulate, commands["simulate"])

    assert main([*shlex.split(commands["simulate"])[1:], "--json", str(tmp_path / "run.json")]) == 0

    assert json.loads((tmp_path / "run.json").read_text())["event_digest"] == winner["event_digest"]


def test_the_printed_drive_sends_the_simulated_requests_at_the_same_times(plan: dict[str, object]) -> None:
    commands, winner = plan["commands"], plan["winner"]
    assert isinstance(commands, dict)
    assert isinstance(winner, dict)

    requests = chosen_requests(_parsed(bench_serve, commands["drive"]))

    load = draws_of_load(shipped_loads().load("chat"), num_draws=1, num_requests=30)
    planned = load.at_rate(winner["rate"])
    sent = requests.draw(requests.source.seed)
    assert [each.prompt for each in sent] == [each.prompt for each in planned]
    assert [each.arrival_s for each in sent] == pytest.approx([each.arrival_s for each in planned])


def test_a_time_to_first_token_alone_can_be_planned_for(profile: Path, tmp_path: Path) -> None:
    words = ["plan", "--quick", "--jobs", "1", "--profile", str(profile), "--gpus", "1", "--workload", "chat"]

    assert main([*words, "--num-prompts", "20", "--slo", "ttft=2s", "--json", str(tmp_path / "plan.json")]) == 0

    assert json.loads((tmp_path / "plan.json").read_text())["winner"]["goodput"] > 0.0


def test_a_price_gives_dollars_per_million_tokens(profile: Path, tmp_path: Path) -> None:
    words = ["plan", "--quick", "--jobs", "1", *shlex.split(GOAL), "--profile", str(profile), "--price", "0.1"]

    assert main([*words, "--json", str(tmp_path / "plan.json")]) == 0

    cost = json.loads((tmp_path / "plan.json").read_text())["winner"]["cost"]
    assert cost["per_hour"] == 0.1
    assert cost["per_million_output"] > cost["per_million_input"] > 0.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--device cpu", "kvist profile MODEL --output profile.json"),
        ("--device {profile}", "a profile is given as --profile"),
        ("--profile {profile} --device H100", "give one"),
        ("--profile {profile} --model llama-3.1-8b", "is of smollm2-135m, not of llama-3.1-8b"),
        ("--profile {profile} --dtype int8", "a profile of it"),
        ("--profile {profile} --kv-cache-tokens many", "write numbers"),
        ("--profile {profile} --memory-gb 0.001", "holds"),
        ("--profile {profile} --profile {profile}", "given twice"),
        ("--profile {profile} --workload service_long_prompt", "Give --scale-lengths"),
        ("--profile /nowhere/at/all", "kvist profile"),
        ("--profile {old}", "run kvist profile smollm2-135m"),
        ("--memory-gb 8", "it needs --profile"),
        ("--kv-cache-tokens 4096", "it needs --profile"),
        ("--profile {profile} --workload ''", "--workload ''"),
        ("--profile {profile} --config-out /nowhere/plan.toml", "a folder that exists"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    words: str, said: str, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.json"
    old.write_bytes(msgspec.json.encode(msgspec.structs.replace(profile_table(), engine=None)))

    assert main(["plan", "--quick", *shlex.split(GOAL), *shlex.split(words.format(profile=profile, old=old))]) == 2

    assert said in capsys.readouterr().err


def _serve_configs(words: list[str]) -> dict[str, Any]:
    parser = ArgumentParser(prog="kvist serve")
    serve.add_arguments(parser)
    return load_configs(parser.parse_known(words), SERVE_SECTIONS)


def _parsed(module: ModuleType, line: str) -> argparse.Namespace:
    """A printed command, as its own parser takes it."""
    parser = ArgumentParser(prog="kvist")
    module.add_arguments(parser)
    return parser.parse_known(shlex.split(line)[2 if module is simulate else 3 :])
