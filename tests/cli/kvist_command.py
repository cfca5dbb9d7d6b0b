"""Runs the command line as users do: in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def kvist(
    *words: str, stdin: str = "", env: dict[str, str] | None = None, timeout_s: float = 100
) -> subprocess.CompletedProcess[str]:
    """The finished process of `kvist words...`, with its output as text."""
    return subprocess.run(
        [sys.executable, "-m", "kvist", *words],
        input=stdin,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
