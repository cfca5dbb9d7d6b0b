"""The command line as a whole: help, unknown names, exit codes, one line per error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.kvist_command import kvist

from kvist.cli import main as cli
from kvist.core.version import __version__


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from kvist.cli.main import main; code = main(['--help'])\n"
        "heavy = {'numpy', 'tokenizers', 'starlette', 'jinja2', 'rich', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*name.split(), "--help"]) == 0
    assert f"usage: kvist {name}" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["version", "--version", "-V"])
def test_version_is_printed(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word]) == 0
    assert capsys.readouterr().out == f"kvist {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serv"], "Did you mean serve?"),
        (["bench"], "one of: serve"),
        (["bench", "kernel"], "one of: serve"),
        (["inspect", "--tensor"], "Did you mean --tensors?"),
        (["inspect", "x.gguf", "y.gguf"], "unexpected argument 'y.gguf'"),
        (["inspect", "--num-blocks", "few"], "whole number"),
        (["make-random-model", "x.gguf"], "--like"),
    ],
)
def test_wrong_calls_exit_with_2_and_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert output.err.count("\n") == 1


def test_no_command_shows_the_overview_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: kvist" in capsys.readouterr().out


def test_a_traceback_is_shown_only_when_asked_for() -> None:
    plain = kvist("inspect", "/nowhere.gguf")
    assert (plain.returncode, plain.stderr.count("\n")) == (1, 1)
    debug = kvist("inspect", "/nowhere.gguf", env={**os.environ, "KVIST_DEBUG": "1"})
    assert debug.returncode == 1
    assert "Traceback" in debug.stderr


def test_ctrl_c_while_modules_load_ends_as_later() -> None:
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith(('kvist.config', 'kvist.core.errors')): raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from kvist.cli.main import main\n"
        "sys.exit(main(['models']))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (result.returncode, result.stderr) == (130, "")


def test_what_the_terminal_cannot_show_becomes_a_question_mark(tmp_path: Path) -> None:
    output = str(tmp_path / "\u6a21\u578b.gguf")
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    result = kvist("make-random-model", "--like", "tiny-llama", output, env=env)
    assert (result.returncode, result.stderr) == (0, "")
    assert "??.gguf" in result.stdout
