"""Runs the command line as users do: in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer


def kvist(
    *words: str, stdin: str = "", env: dict[str, str] | None = None, timeout_s: float = 200
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


@contextmanager
def serving(*words: str, timeout_s: float = 200) -> Iterator[str]:
    """`kvist serve words...` on a free port, from its ready line to a clean stop. Yields its URL."""
    command = [sys.executable, "-m", "kvist", "serve", "--port", "0", *words]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        kill_timer = Timer(timeout_s, process.kill)
        kill_timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"https?://[^\s)]+", line):
                    break
            else:
                log.seek(0)
                raise AssertionError(f"kvist serve ended: {log.read()}")
            kill_timer.cancel()
            yield found[0]
        finally:
            kill_timer.cancel()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=100)
