"""The stored advice for the guide's twelve cells: complete, repeatable, and different where the physics is."""

from __future__ import annotations

import json
import shlex
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from kvist.cli import simulate as simulate_command
from kvist.config.arguments import ArgumentParser
from kvist.config.load_cluster import parse_cluster

CELLS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "advice_cells.json").read_text(encoding="utf-8")
)["results"]  # Any: as JSON gives it
SCENARIOS = ("chat", "long-prompt", "multi-turn", "large-cluster")
SIZES = ("small", "medium", "large")


def taken(scenario: str, size: str) -> set[str]:
    return {row["technique"].split(" (")[0] for row in CELLS[f"{scenario}/{size}"]["taken"]}


def rows(cell: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell["baseline"], *cell["taken"], *cell["refused"], cell["final"]]


def test_there_is_advice_for_every_scenario_and_size() -> None:
    order = [f"{scenario}/{size}" for scenario in SCENARIOS for size in SIZES]
    assert list(CELLS) == order


@pytest.mark.parametrize("name", list(CELLS))
def test_every_figure_names_a_simulation_that_can_be_repeated(name: str) -> None:
    for row in rows(CELLS[name]):
        assert blake2b(row["config"].encode(), digest_size=6).hexdigest() == row["config_hash"]
        assert parse_cluster(row["config"], row["config_hash"]).config.num_devices <= CELLS[name]["num_devices"]
        words = shlex.split(row["simulate"])
        parser = ArgumentParser(prog="kvist")
        simulate_command.add_arguments(parser)
        parser.parse_known(words[2:])
        assert f"{row['config_hash']}.toml" in row["simulate"]
        assert row["event_digest"]


@pytest.mark.parametrize("name", list(CELLS))
def test_advice_never_ends_with_less_goodput_than_it_began(name: str) -> None:
    cell = CELLS[name]

    assert cell["final"]["goodput"] >= cell["baseline"]["goodput"]
    assert all(row["why"] for row in cell["refused"])


def test_a_prefix_cache_brings_first_tokens_sooner_where_prefixes_are_shared() -> None:
    def has_sooner_tokens(name: str) -> bool:
        found = [row for row in CELLS[name]["taken"] if row["technique"] == "prefix caching"]
        return any(row["stage"] == "time to first token" for row in found)

    for name in CELLS:
        assert has_sooner_tokens(name) == name.startswith(("chat", "multi-turn")), name


@pytest.mark.parametrize("size", ["small", "large"])
def test_chunks_give_long_prompts_steadier_streams_for_later_first_tokens_and_short_ones_nothing(size: str) -> None:
    def beside_the_advice(scenario: str, metric: str) -> float:
        cell = CELLS[f"{scenario}/{size}"]
        [chunked] = [row for row in cell["refused"] if row["technique"] == "chunked prefill (512)"]
        return float(chunked[metric] / cell["final"][metric])

    assert beside_the_advice("long-prompt", "tpot_p90_s") < 0.96
    assert beside_the_advice("long-prompt", "ttft_p90_s") > 1.2
    assert beside_the_advice("chat", "tpot_p90_s") > 0.98


def test_conversations_are_routed_by_cache_and_chats_are_not() -> None:
    assert "cache-aware routing" in taken("multi-turn", "medium")
    assert "cache-aware routing" not in taken("chat", "medium")


def test_prompts_that_break_the_target_of_the_answers_are_computed_apart() -> None:
    assert "disaggregation" in taken("large-cluster", "small")
    assert not any("disaggregation" in taken("chat", size) for size in SIZES)


def test_only_models_that_outgrow_a_device_begin_with_several() -> None:
    def ranks(name: str) -> int:
        return parse_cluster(CELLS[name]["baseline"]["config"], name).config.groups[0].tensor_parallel_size

    assert ranks("chat/small") == ranks("chat/medium") == 1
    assert all(ranks(name) >= 4 for name in CELLS if name.endswith("large"))
