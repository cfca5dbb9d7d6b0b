"""What every engine's worker speaks: a line of JSON in, a line of JSON out. Standard library only: it runs in the
environment of the engine that is measured, and is imported by the script next to it.

In:  {"prompts": [[token id, ...], ...], "num_output_tokens": n}
Out: {"ready": version} once loaded, then for each line {"seconds": s, "num_output_tokens": n, "peak_bytes": b}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# Takes prompts and how many tokens to generate for each, whatever they are; returns how many it generated in all.
Generate = Callable[[Sequence[Sequence[int]], int], int]


def serve(load: Callable[[], tuple[str, Generate]]) -> None:
    """Answer lines until the end of input. load: gives the engine's version and how to run it."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    version, generate = load()
    _answer(answers, {"ready": version})
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.perf_counter()
        num_output_tokens = generate(asked["prompts"], asked["num_output_tokens"])
        seconds = time.perf_counter() - start
        _answer(
            answers, {"seconds": seconds, "num_output_tokens": num_output_tokens, "peak_bytes": peak_bytes(os.getpid())}
        )


def peak_bytes(pid: int) -> int:
    """Most memory that the process ever had resident; mapped files count where their pages were touched."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/status tells no peak")


def _answer(stream: object, answer: dict[str, object]) -> None:
    print(json.dumps(answer), file=stream, flush=True)  # type: ignore[call-overload]
