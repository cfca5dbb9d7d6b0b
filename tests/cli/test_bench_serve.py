"""`kvist bench serve` against a server that answers by a schedule."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvist.bench import client_run
from kvist.cli.main import main

ROOT = Path(__file__).parents[2]
VLLM_FIELDS = [
    "date",
    "backend",
    "endpoint_type",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "mean_ttft_ms",
    "median_ttft_ms",
    "std_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
]
DETAILS = ["input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"]
OURS = ["cache_hit_share", "preemptions", "rejections", "slo_attainment", "client_cpu_share", "token_counting"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with oracle() as address:
        yield address


class oracle:
    """The oracle server as a process; its URL."""

    def __init__(self, **schedule: Any) -> None:
        words = [sys.executable, "-m", "benchmarks.oracle_server", json.dumps(schedule)]
        self._process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> str:
        assert self._process.stdout is not None
        return f"http://127.0.0.1:{int(self._process.stdout.readline())}/v1"

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=100)


def bench(url: str, *words: str) -> int:
    small = [] if "--load" in words or "--trace" in words else ["--num-prompts", "6", "--random-output-len", "4"]
    return main(["bench", "serve", "--base-url", url, "--num-warmups", "1", *small, *words])


def test_the_result_has_vllms_fields_and_ours(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--goodput", "ttft:60000", "e2el:60000", "--save-detailed", "--result-dir", str(tmp_path)]
    words += ["--report", str(tmp_path / "r.html")]
    assert bench(url, *words, "--result-filename", "r.json", "--request-rate", "100", "--label", "x") == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert set(VLLM_FIELDS + DETAILS + OURS) <= set(result)
    assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (6, 6 * 512, 24)
    assert (result["slo_attainment"], result["cache_hit_share"], result["request_rate"]) == (1.0, 0.5, 100)
    assert result["preemptions"] == 0
    assert result["output_lens"] == [4] * 6
    assert {"command", "commit", "machine"} <= set(result)
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == 6
    out = capsys.readouterr().out
    assert "TTFT" in out
    assert "6 completed, 0 failed" in out


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_frozen_loads_run_at_a_share_of_the_measured_capacity(backend: str, url: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    words = ["--load", "chat_multi_turn", "--num-prompts", "3", "--time-scale", "0.01", "--json", str(path)]
    assert bench(url, *words, "--backend", backend) == 0
    result = json.loads(path.read_text())
    assert (result["completed"], result["load"]) == (3, "chat_multi_turn")
    assert result["capacity_per_s"] > 0
    assert result["targets"] == {"ttft": "5x", "tpot": "3x"}
    assert len(result["unloaded"]["ttft"]) > 1
    assert result["prompts_as"] == ("messages" if backend == "openai-chat" else "text")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("mooncake", ['{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}'] * 2),
        ("azure", ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,4"]),
        ("burstgpt", ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "5,ChatGPT,72,8,80,x"]),
        ("lengths", ["num_prefill_tokens,num_decode_tokens", "74,9"]),
        (
            "jsonl",
            [
                '{"index":0,"arrival_s":0,"prompt":[{"type":"text","text_id":"a","start":0,"num_tokens":20}],'
                '"num_output_tokens":2}'
            ],
        ),
    ],
)
def test_recorded_loads_are_replayed(name: str, lines: list[str], url: str, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "r.json"
    trace.write_text("\n".join(lines) + "\n")
    assert bench(url, "--trace", str(trace), "--json", str(path), "--scale-lengths", "0.5") == 0
    result = json.loads(path.read_text())
    assert result["failed"] == 0
    assert result["completed"] == len(lines) - (name in ("azure", "burstgpt", "lengths"))


def test_the_largest_rate_is_searched(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    words = ["--request-rate", "50", "--goodput", "e2el:0.0001", "--find-max-rate", "--json", str(path)]
    assert bench(url, *words) == 0
    search = json.loads(path.read_text())["rate_search"]
    assert search["max_rate_per_s"] is None
    assert len(search["steps"]) >= 1
    assert "no measured rate kept the targets" in capsys.readouterr().out


def test_failures_are_shown(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert bench(url, "--extra-body", '{"oracle": {"failure": "disconnect", "after_chunks": 4}}') == 0
    assert bench(url, "--load", "parallel_samples", "--quick") == 0
    assert "12 completed, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--load", "chatt"], "chat"),
        (["--goodput", "ttft"], "--goodput"),
        (["--extra-body", "[1]"], "--extra-body"),
        (["--extra-body", '{"n": 2}'], "up to the load"),
        (["--metric-percentiles", "101"], "at most 100"),
        (["--percentile-metrics", "ttff"], "ttft"),
        (["--burstiness", "2"], "--request-rate"),
        (["--request-rate", "0"], "--request-rate"),
        (["--ramp-up-strategy", "linear"], "--ramp-up-start-rps"),
        (["--trace", "/nowhere"], "/nowhere"),
        (["--trace", "/nowhere", "--load", "chat"], "give one"),
        (["--json", "/nowhere/x"], "--json"),
        (["--json", "x", "--save-result"], "give one"),
        (["--base-url", "ftp://x"], "--base-url"),
        (["--header", "x"], "--header"),
        (["--random-input-len", "200000"], "--scale-lengths"),
        (["--model", "other"], "oracle"),
        (["--find-max-rate"], "--goodput"),
        (["--attainment", "2"], "--attainment"),
    ],
)
def test_wrong_calls_are_refused(words: list[str], message: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(url, *words) == 2
    assert message in capsys.readouterr().err


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http://127.0.0.1:1", "--ready-check-timeout-sec", "0") == 1
    assert "127.0.0.1:1 was not ready" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_who_is_told_to_stop_prints_what_was_measured(sent: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with oracle(itl_s=0.01) as url:
        words = [sys.executable, "-m", "kvist", "bench", "serve", "--base-url", url, "--random-output-len", "30"]
        words += ["--request-rate", "10", "--num-prompts", "600", "--random-input-len", "2", "--json", str(path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if re.search("measuring: [1-9]", line):  # progress, after the first answer
                    break
            process.send_signal(sent)
            out, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "stopped before its end" in out
    result = json.loads(path.read_text())
    assert result["was_stopped"]
    assert result["completed"] > 0
    assert result["failed"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("says", ["ids", "nothing"])
@pytest.mark.parametrize("search", [[], ["--find-max-rate", "--goodput", "e2el:60000"]])
def test_a_server_that_is_killed_leaves_what_was_measured(
    says: str, search: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client_run, "LONGEST_ABSENCE_S", 0.2)
    path = tmp_path / "r.json"
    words = ["--request-rate", "20", "--num-prompts", "30" if search else "1000", "--random-input-len", "2"]
    with oracle(itl_s=0.02, says=says, killed_after=45) as url:  # 30 are a search's first step
        assert bench(url, *words, *search, "--json", str(path)) == 1
    result = json.loads(path.read_text())
    assert result["server_was_lost"]
    assert result["completed"] > 0
    assert search or result["failed"] > 0
    assert "THE SERVER WAS GONE" in capsys.readouterr().out
