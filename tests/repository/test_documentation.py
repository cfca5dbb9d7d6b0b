"""README and pages are true: their commands and programs run, against a server where they need one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.kvist_command import serving

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
DOCUMENTED_URL = "http://127.0.0.1:8000"

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(400)]


def blocks(language: str) -> list[tuple[str, str]]:
    """(page and number, text) of every fenced block in `language`."""
    found = []
    for page in PAGES:
        texts = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
        found += [(f"{page.name}-{number}", text) for number, text in enumerate(texts, 1)]
    return found


def console_commands() -> list[tuple[str, str]]:
    """(name, command) of each line that starts with "$ ", with its continuation lines."""
    return [
        (f"{name}-{number}", command)
        for name, text in blocks("console")
        for number, command in enumerate(re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.M), 1)
    ]


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with serving() as url:
        yield url


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("command", [pytest.param(command, id=name) for name, command in console_commands()])
def test_documented_commands_run(command: str, server_url: str) -> None:
    if command.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = command.replace(DOCUMENTED_URL, server_url).replace(".venv/bin/kvist", "kvist")
    result = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=360, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert '"error"' not in result.stdout


@pytest.mark.parametrize("program", [pytest.param(text, id=name) for name, text in blocks("python")])
def test_documented_programs_run(program: str, server_url: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", program.replace(DOCUMENTED_URL, server_url)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
