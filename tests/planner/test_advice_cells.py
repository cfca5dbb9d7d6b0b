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


def test_a_prefix_cache_pays_where_prefixes_are_shared() -> None:
    assert all("prefix caching" in taken(*name.split("/")) for name in CELLS if name.startswith("multi-turn"))
    assert not any("prefix caching" in taken(*name.split("/")) for name in CELLS if name.startswith("long-prompt"))


def test_chunks_pay_for_long_prompts_and_routing_by_cache_for_conversations() -> None:
    assert "chunked prefill" in taken("long-prompt", "large")
    assert "chunked prefill" not in taken("chat", "large")
    assert "cache-aware routing" in taken("multi-turn", "medium")
    assert "cache-aware routing" not in taken("chat", "medium")


def test_only_models_that_outgrow_a_device_begin_with_several() -> None:
    def ranks(name: str) -> int:
        return parse_cluster(CELLS[name]["baseline"]["config"], name).config.groups[0].tensor_parallel_size

    assert ranks("chat/small") == ranks("chat/medium") == 1
    assert all(ranks(name) >= 4 for name in CELLS if name.endswith("large"))
