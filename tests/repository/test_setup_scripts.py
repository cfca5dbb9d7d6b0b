"""scripts/_environment with a stand-in for Python and pip: what it checks, repeats and leaves alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Notes each call; `-m venv` makes an environment whose python is this file again.
STUB = """#!/usr/bin/env bash
echo "$*" >>"{log}"
case "$*" in
  *"import venv"*) exit {venv_missing} ;;
  *"Python.h"*) exit {headers_missing} ;;
  "-m venv .venv") mkdir -p .venv/bin && cp "{stub}" .venv/bin/python && [ ! -e "{checkout}/fail-venv" ] ;;
  *"pip --version"*) [ ! -e "{checkout}/broken-pip" ] ;;
  *"pip install"*) sleep 0.3; [ ! -e "{checkout}/fail-install" ] ;;
esac
"""

INTERFACE = "src/kvist/execution/native/_native.pyi"


class Checkout:
    """A folder with the scripts, and a stub python3.11 first on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        shutil.copytree(ROOT / "scripts", folder / "scripts")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        (folder / "csrc").mkdir()
        (folder / "csrc" / "kernel.cpp").write_text("int one() { return 1; }")
        (folder / INTERFACE).parent.mkdir(parents=True)
        (folder / INTERFACE).write_text("def one() -> int: ...\n")
        (folder / "stub").mkdir()
        self.write_stub()

    def write_stub(self, *, venv_missing: int = 0, headers_missing: int = 0) -> None:
        stub = self.folder / "stub" / "python3.11"
        stub.write_text(
            STUB.format(
                log=self.log,
                stub=stub,
                checkout=self.folder,
                venv_missing=venv_missing,
                headers_missing=headers_missing,
            )
        )
        stub.chmod(0o755)

    def start(self, level: str = "base", *, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*prefix, "bash", "-c", f". scripts/_environment; ensure_environment {level}; echo entered"],
            cwd=self.folder,
            env={"PATH": f"{self.folder / 'stub'}:/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, level: str = "base") -> tuple[int | None, str, str]:
        process = self.start(level)
        out, err = process.communicate(timeout=100)
        return process.returncode, out, err

    def count(self, call: str) -> int:
        return self.log.read_text().count(call) if self.log.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout")  # with a space in its path


def test_the_second_run_calls_nothing(checkout: Checkout) -> None:
    assert checkout.run()[:2] == (0, "entered\n")
    calls = checkout.log.read_text()
    assert checkout.run()[:2] == (0, "entered\n")
    assert checkout.log.read_text() == calls


def test_a_dev_environment_serves_too_but_not_the_reverse(checkout: Checkout) -> None:
    checkout.run("base")
    checkout.run("dev")
    assert checkout.count("pip install") == 2
    checkout.run("base")
    assert checkout.count("pip install") == 2


def test_a_missing_venv_is_named_with_the_line_that_installs_it(checkout: Checkout) -> None:
    checkout.write_stub(venv_missing=1)
    code, out, err = checkout.run()
    assert (code, out) == (1, "")
    assert "sudo apt-get install -y python3-venv" in err


def test_missing_headers_are_named_with_the_line_that_installs_them(checkout: Checkout) -> None:
    checkout.write_stub(headers_missing=1)
    code, out, err = checkout.run()
    assert (code, out) == (1, "")
    assert "sudo apt-get install -y python3-dev" in err


def test_a_set_up_that_failed_half_way_starts_afresh(checkout: Checkout) -> None:
    fail = checkout.folder / "fail-install"
    fail.touch()
    code, out, err = checkout.run()
    assert (code, out) == (1, "")
    assert "Run the same command again" in err
    fail.unlink()
    assert checkout.run()[:2] == (0, "entered\n")
    assert checkout.count("-m venv .venv") == 2


def test_an_environment_that_was_cut_off_while_made_is_made_afresh(checkout: Checkout) -> None:
    fail = checkout.folder / "fail-venv"
    fail.touch()
    assert checkout.run()[0] == 1
    fail.unlink()
    assert checkout.run()[:2] == (0, "entered\n")
    assert checkout.count("-m venv .venv") == 2


def test_a_broken_environment_is_rebuilt(checkout: Checkout) -> None:
    checkout.run()
    (checkout.folder / ".venv" / "bin" / "python").unlink()
    assert checkout.run()[:2] == (0, "entered\n")
    assert checkout.count("-m venv .venv") == 2


@pytest.mark.parametrize("changed", ["constraints.txt", "csrc/kernel.cpp", INTERFACE])
def test_changed_pins_and_kernels_are_installed_into_the_same_environment(checkout: Checkout, changed: str) -> None:
    checkout.run()
    with (checkout.folder / changed).open("a") as file:
        file.write("\n")
    checkout.run()
    assert (checkout.count("-m venv .venv"), checkout.count("pip install")) == (1, 2)


def test_a_checkout_that_cannot_be_written_is_named(checkout: Checkout) -> None:
    checkout.folder.chmod(0o555)
    # Root writes where it may not unless it gives that right away.
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if drop and subprocess.run([*drop, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root cannot give up its rights here")
    process = checkout.start(prefix=drop)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (1, "")
    assert f"{checkout.folder} cannot be written" in err
    assert err.count("\n") == 1


def test_two_at_once_set_up_once(checkout: Checkout) -> None:
    processes = [checkout.start(), checkout.start()]
    for process in processes:
        out, _ = process.communicate(timeout=100)
        assert (process.returncode, out) == (0, "entered\n")
    assert checkout.count("pip install") == 1
