"""`kvist complete`, `chat` and `serve` as processes of their own, on a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.cli.kvist_command import kvist, serving
from tests.conftest import TinyModel

from kvist.cli.main import main

SMALL = ("--num-blocks", "32", "--max-num-seqs", "2", "--max-num-batched-tokens", "64")


def test_complete_streams_text_and_reports_the_same_as_json(tiny_model: TinyModel) -> None:
    words = ("complete", "-m", str(tiny_model()), *SMALL, "--max-tokens", "8", "--temperature", "0")
    text = kvist(*words, "once upon")
    report = kvist(*words, "--json", "-", stdin="once upon")
    assert (text.returncode, report.returncode) == (0, 0), text.stderr + report.stderr
    answer = json.loads(report.stdout)
    assert text.stdout == answer["text"] + "\n"
    assert text.stderr == ""
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"]) == 8
    assert answer["finish_reason"] == "length"


def test_complete_is_repeatable_from_its_seed(tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["complete", "-m", str(tiny_model()), *SMALL, "--max-tokens", "12", "--temperature", "1", "once"]
    texts = []
    for seed in ("1", "1", "2"):
        assert main([*words, "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--temperature", "-1"], 2, "at least 0"),
        (["--top-p", "2"], 2, "top_p"),
        (["--max-tokens", "0"], 2, "at least 1"),
        (["--max-model-len", "100000"], 2, "--max-model-len"),
        (["--tokenizer", "/nowhere"], 1, "/nowhere"),
        (["--chat-template", "/nowhere"], 2, "/nowhere"),
    ],
)
def test_complete_refuses_what_cannot_be_in_one_line(
    words: list[str], code: int, message: str, tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["complete", "-m", str(tiny_model()), *SMALL, *words, "once"]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert output.err.count("\n") == 1


def test_a_prompt_longer_than_the_model_is_refused(tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "-m", str(tiny_model()), *SMALL, "word " * 5000]) == 2
    assert "tokens" in capsys.readouterr().err


def test_chat_keeps_the_conversation_in_one_process(tiny_model: TinyModel) -> None:
    words = ("chat", str(tiny_model()), *SMALL, "--max-tokens", "6", "--temperature", "0")
    result = kvist(*words, stdin="one\n/reset\none\n")
    assert result.returncode == 0, result.stderr
    first, second = (answer for answer in result.stdout.split("\n") if answer)
    assert first == second


def test_serve_answers_and_stops_cleanly(tiny_model: TinyModel) -> None:
    with serving(str(tiny_model()), *SMALL, "--served-model-name", "tiny") as url:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=100) as response:
            assert json.load(response)["data"][0]["id"] == "tiny"
        answer = kvist("chat", "--url", url, "--max-tokens", "4", stdin="one\n")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()


def test_serve_names_a_taken_port(tiny_model: TinyModel) -> None:
    with serving(str(tiny_model()), *SMALL) as url:
        second = kvist("serve", str(tiny_model()), "--port", url.rsplit(":", 1)[1], *SMALL)
    assert second.returncode == 2
    assert "--port" in second.stderr
    assert second.stderr.count("\n") == 1


def test_serve_prints_its_configuration_as_a_file_it_reads(
    tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", str(tiny_model()), *SMALL, "--allowed-origins", "a,b", "--print-config"]
    assert main(words) == 0
    text = capsys.readouterr().out
    path = tmp_path / "kvist.toml"
    path.write_text(text)
    assert main(["serve", "--config", str(path), "--print-config"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("command", ["complete", "serve"])
def test_ctrl_c_ends_a_command_without_a_traceback(command: str, tiny_model: TinyModel) -> None:
    # Less than 1 favours what was said: the model goes on until it is stopped.
    endless = ["once", "--max-tokens", "3000", "--temperature", "0", "--repetition-penalty", "0.5"]
    words = {"complete": [*endless, "-m", str(tiny_model())], "serve": [str(tiny_model())]}[command]
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kvist",
            command,
            *words,
            *(["--port", "0"] if command == "serve" else ["--num-blocks", "400"]),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)  # it is answering, or serving
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == {"complete": 130, "serve": 0}[command]
    assert "Traceback" not in errors


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    result = kvist("pull", env={**os.environ, "KVIST_CACHE": str(blocked / "cache")})
    assert result.returncode == 1
    assert str(blocked) in result.stderr
    assert "KVIST_CACHE" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_empty_cache_lists_the_catalogue_as_not_fetched(tmp_path: Path) -> None:
    result = kvist("models", "--json", env={**os.environ, "KVIST_CACHE": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    models = {model["name"]: model for model in json.loads(result.stdout)}
    assert models["smollm2-135m-instruct"]["path"] is None


def test_output_into_a_closed_pipe_is_no_error(tiny_model: TinyModel) -> None:
    program = f"{sys.executable} -m kvist inspect {tiny_model()} --json --tensors | head -1"
    result = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (result.stdout, result.stderr) == ("{\n", "")


@pytest.mark.parametrize(("closed", "is_shown"), [("2>&-", True), ("<&- 2>&-", True), (">&-", False)])
def test_closed_standard_streams_keep_nobody_from_answering(
    closed: str, *, is_shown: bool, tiny_model: TinyModel
) -> None:
    words = ["complete", "-m", str(tiny_model()), *SMALL, "--max-tokens", "4", "--temperature", "0", "once upon"]
    shell = f'exec "$0" -m kvist "$@" {closed}'
    process = subprocess.run(
        ["bash", "-c", shell, sys.executable, *words], capture_output=True, text=True, timeout=100, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert bool(process.stdout.strip()) is is_shown


def test_serve_says_how_many_files_it_may_open_before_it_runs_out_of_them() -> None:
    shell = 'ulimit -n 12; exec "$0" -m kvist serve --port 0'
    process = subprocess.run(
        ["bash", "-c", shell, sys.executable], capture_output=True, text=True, timeout=100, check=False
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert "may open 12 files" in process.stderr
    assert process.stderr.count("\n") == 1
