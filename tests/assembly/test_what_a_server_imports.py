"""A server's process starts its engine's process first and loads nothing that only an engine needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    return set(ended.stdout.split())


def test_the_command_is_read_before_anything_heavy_is_loaded():
    loaded = modules_after("import kvist.cli.main, kvist.cli.serve")
    assert loaded.isdisjoint(["numpy", "asyncio", "uvicorn", "starlette", "tokenizers", "jinja2", "rich", "msgspec"])


def test_a_server_loads_no_executor_and_no_scheduler():
    loaded = modules_after("import kvist.assembly.serve")
    assert {"kvist.server.serve", "kvist.runtime.process_link"} <= loaded
    unwanted = (
        "kvist.execution",
        "kvist.models",
        "kvist.engine",
        "kvist.scheduler.scheduler",
        "rich",
        "huggingface_hub",
    )
    assert [name for name in loaded if name in unwanted or name.startswith("kvist.execution.")] == []


@pytest.mark.parametrize("module", ["rich", "huggingface_hub", "starlette", "uvicorn", "tokenizers", "jinja2"])
def test_an_engine_process_loads_no_server(module):
    assert module not in modules_after("import kvist.assembly.engine_child")
