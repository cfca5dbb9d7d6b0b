"""`kvist simulate`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvist.cli.main import EXIT_USAGE, main

CLUSTER = """
[[replicas]]
count = 2
kv_cache_tokens = 20_000
max_num_batched_tokens = 512
[cache]
block_size = 16
kv_bytes_per_token = 1000
[step_time]
per_step_s = 0.01
per_token_s = 1e-4
"""


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER, encoding="utf-8")
    return path


def simulated(*words: str, folder: Path) -> dict[str, object]:
    out = folder / "out.json"
    assert main(["simulate", *words, "--json", str(out)]) == 0
    document: dict[str, object] = json.loads(out.read_text(encoding="utf-8"))
    return document


def test_the_result_has_the_fields_of_a_benchmark_and_repeats_itself(cluster_file: Path, tmp_path: Path) -> None:
    words = ("--config", str(cluster_file), "--workload", "chat", "--num-prompts", "30")
    first, second = (simulated(*words, folder=tmp_path) for _ in range(2))
    assert first["event_digest"] == second["event_digest"]
    assert first["completed"] == 30
    for name in ("mean_ttft_ms", "p99_tpot_ms", "output_throughput", "cache_hit_share", "preemptions", "replicas"):
        assert name in first


def test_roles_and_router_can_be_given_on_the_command_line(cluster_file: Path, tmp_path: Path) -> None:
    words = ["--config", str(cluster_file), "--workload", "chat", "--num-prompts", "20", "--capacity", "50"]
    document = simulated(*words, "--roles", "1p1d", "--router", "least_loaded", folder=tmp_path)
    assert document["replica_groups"] == ["1 x prefill", "1 x decode"]
    assert document["router"] == "least_loaded"
    assert document["link_bytes"]


def test_a_shipped_trace_runs_on_a_catalogued_model_and_device(tmp_path: Path) -> None:
    words = ("--workload", "sharegpt_multi_turn", "--num-prompts", "20")
    document = simulated(*words, "--model", "llama-3.1-8b", "--device", "A100-80GB-SXM", folder=tmp_path)
    assert document["completed"] == 20


def test_the_page_shows_the_example_file() -> None:
    docs = Path(__file__).parents[2] / "docs"
    example = (docs / "examples" / "disaggregated.toml").read_text(encoding="utf-8")
    assert f"```toml\n{example}```" in (docs / "simulator.md").read_text(encoding="utf-8")


def test_a_trace_shows_each_replica_as_an_engine(cluster_file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = ["--config", str(cluster_file), "--workload", "chat", "--num-prompts", "20", "--capacity", "50"]
    with_trace = simulated(*words, "--trace", str(trace), folder=tmp_path)
    assert with_trace["event_digest"] == simulated(*words, folder=tmp_path)["event_digest"]
    events = json.loads(trace.read_text(encoding="utf-8"))
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"replica 0 (group0)", "replica 1 (group0)"} <= names


def test_a_report_is_written(cluster_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    words = ["--config", str(cluster_file), "--workload", "chat", "--num-prompts", "20", "--capacity", "50"]
    simulated(*words, "--report", str(page), folder=tmp_path)
    assert "Utilization of the replicas" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[replicas]]\ncounts = 2", "counts"),
        ("[replica]\n", "replica"),
        ("[step_time]\nper_step_s = 1", "at least one"),
        ("[[replicas]]\nkv_cache_tokens = 4096", "model and a device"),
        ("[[replicas]]\nkv_cache_tokens = 4096\n[step_time]\nper_stepp_s = 1", "per_step_s"),
        ("[[replicas]]\nkv_cache_tokens = 4096\n[step_time]\nper_step_s = 0", "all coefficients are 0"),
        ("[[replicas]]\nkv_cache_tokens = 4096\n[step_time]\nper_step_s = 1\n[[failures]]\nreplica = 7", "replica 7"),
        ("[[replicas]\n", "cluster.toml"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    assert main(["simulate", "--config", str(path), "--workload", "chat", "--capacity", "5"]) == EXIT_USAGE
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--roles", "8x"], "8p8d"),
        (["--roles", "1p1d", "--replicas", "3"], "another number"),
        (["--workload", "nothing"], "no such load"),
        (["--device", "H1000"], "H100"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    words: list[str], message: str, cluster_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--config", str(cluster_file), "--workload", "chat", *words]) == EXIT_USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CLUSTER.replace("count = 2", "count = 100_000_000"), "count must be at most"),
        (CLUSTER.replace("20_000", "100_000_000_000_000"), "kv_cache_tokens must be at most"),
        (CLUSTER.replace("count = 2", "prefill_weight = 0.0"), "no replica may prefill"),
        (CLUSTER.replace("count = 2", "decode_weight = 0.0"), "no replica may decode"),
        (CLUSTER.replace("= 0.01", "= 1e300"), "per_step_s must be a number of seconds"),
        (CLUSTER + "[[failures]]\nreplica = 0\nat_s = 0.0\ndown_s = 1e300\n", "down_s must be at most"),
    ],
)
def test_clusters_that_nobody_can_simulate_are_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    words = ["simulate", "--config", str(path), "--workload", "chat", "--num-prompts", "2", "--capacity", "1"]
    assert main(words) == EXIT_USAGE
    assert message in capsys.readouterr().err


def test_a_load_that_takes_centuries_is_refused(cluster_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--config", str(cluster_file), "--workload", "chat", "--num-prompts", "20"]
    assert main([*words, "--capacity", "1e-9"]) == EXIT_USAGE
    assert "146 years" in capsys.readouterr().err


def test_a_trace_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", "--config", "none.toml", "--workload", "chat", "--trace", str(tmp_path / "none" / "t.json")]
    assert main(words) == EXIT_USAGE
    assert "--trace" in capsys.readouterr().err
