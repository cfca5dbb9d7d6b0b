"""The comparison with peers: its parts that need no peer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from benchmarks.peers import online
from benchmarks.peers.report import fastest_peers, result_row
from benchmarks.peers.server import Server, has_text
from benchmarks.peers.works import WORKS

from kvist.workload.text_source import TextSource, read_sentences

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source() -> TextSource:
    return TextSource(lambda text: list(text.encode()), read_sentences())


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_prompts_have_the_stated_sizes_and_are_new_in_every_repeat(work, source):
    first, second = work.prompts(source, 0), work.prompts(source, 1)
    assert [len(prompt) for prompt in first] == [work.num_prompt_tokens] * work.num_requests
    assert first == work.prompts(source, 0)
    assert not {tuple(prompt[:32]) for prompt in first} & {tuple(prompt[:32]) for prompt in second}


def test_prefill_is_taken_from_a_text_of_its_own(source):
    (decode,) = (work for work in WORKS if work.name == "decode_128")
    assert decode.prompts(source, 0)[0][:32] != decode.prompts(source, 0, part="prefill")[0][:32]
    assert decode.figure(decode, 2.0) == 64.0


def test_ratios_say_how_many_times_better_kvists_best_setting_is_for_rates_and_for_times():
    values = {
        ("kvist", "fixed_32"): [100.0, 120.0, 110.0],
        ("kvist int8", "fixed_32"): [90.0],
        ("kvist", "start_s"): [0.5],
        ("kvist int8", "start_s"): [0.4],
        ("a", "fixed_32"): [55.0, 50.0, 60.0],
        ("a", "start_s"): [0.2],
        ("b", "fixed_32"): [10.0],
    }
    ours = ("kvist", "kvist int8")
    rows = {name: result_row(name, values, ours) for name in (*ours, "a", "b")}
    assert "kvist_times_better" not in rows["kvist"]["fixed_32"]
    assert "kvist_times_better" not in rows["kvist int8"]["start_s"]
    assert (rows["a"]["fixed_32"]["median"], rows["a"]["fixed_32"]["kvist_times_better"]) == (55.0, 2.0)
    assert rows["a"]["start_s"]["kvist_times_better"] == 0.5
    assert fastest_peers(values, ours) == {
        "fixed_32": {"kvist": "kvist", "peer": "a", "kvist_times_better": 2.0},
        "start_s": {"kvist": "kvist int8", "peer": "a", "kvist_times_better": 0.5},
    }


@pytest.mark.slow
def test_online_figures_are_those_of_the_product_own_client(tiny_model: Callable[..., Path]) -> None:
    words = [sys.executable, "-m", "benchmarks.oracle_server", json.dumps({"ttft_s": 0.05, "itl_s": 0.01})]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = cast("Server", SimpleNamespace(port=int(process.stdout.readline())))
        capacity_per_s = online.capacity_per_s(server, tiny_model())
        figures = online.send(server, tiny_model(), 10.0 * capacity_per_s, repeat=0)
        process.communicate(timeout=100)
    assert capacity_per_s > 0
    assert 0.05 <= figures.ttft_mean_s <= figures.ttft_p99_s
    assert figures.tpot_mean_ms > 0  # 10, less what a late first token makes of it
    assert figures.makespan_s > figures.ttft_mean_s


def test_only_lines_with_text_count_as_streamed():
    chunk = {"choices": [{"text": "a", "index": 0, "finish_reason": None}]}
    assert has_text(f"data: {json.dumps(chunk)}\n".encode())
    chunk["choices"][0]["finish_reason"] = "length"
    chunk["choices"][0]["text"] = ""
    assert not has_text(f"data: {json.dumps(chunk)}\n".encode())
    assert not has_text(b"data: [DONE]\n")
    assert not has_text(b"\n")
