"""`kvist bench serve --profile`: the steps of a real server beside what its clients saw."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.real_server import real_server

from kvist.cli.main import main

WORDS = ["--num-prompts", "4", "--random-input-len", "24", "--random-output-len", "6", "--num-warmups", "1"]
WORDS += ["--profile"]


def test_the_servers_steps_are_in_result_and_report(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    result, page = tmp_path / "r.json", tmp_path / "r.html"
    with real_server(tiny_model(), trace={"trace": str(tmp_path / "trace.json"), "trace_on_demand": True}) as server:
        words = ["bench", "serve", "--base-url", server.url, *WORDS, "--json", str(result), "--report", str(page)]
        assert main(words) == 0
    measured = json.loads(result.read_text())
    kinds = measured["steps"]["kinds"]
    computed = sum(kind["num_prefill_tokens"] + kind["num_cached_tokens"] for kind in kinds)
    assert computed == measured["total_input_tokens"] == 4 * 24  # the run's own: without warm-up and probes
    assert sum(kind["num_decode_tokens"] for kind in kinds) == 4 * 5  # the first token of each comes from its prompt
    assert "What steps are composed of" in page.read_text()


def test_a_server_that_traces_nothing_is_told_how(
    tiny_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with real_server(tiny_model()) as server:
        assert main(["bench", "serve", "--base-url", server.url, *WORDS]) == 2
    assert "--trace-on-demand" in capsys.readouterr().err
