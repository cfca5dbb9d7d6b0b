"""Commands that compute on several processes, one of which is killed: said in one line, with an exit code."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import pytest

from kvist.cli import plan as plan_command
from kvist.cli.main import EXIT_FAILED, main
from kvist.planner.advisor import Advisor
from kvist.planner.evaluation import PlanningProblem
from kvist.planner.search import RunAll

DEVICES = "--quick --jobs 2 --gpus 1 --device L4 --num-prompts 10"
COMMANDS = {
    "advise": f"advise --scenario chat {DEVICES}",
    "plan": f"plan --workload service_chat --slo ttft=5s,tpot=200ms {DEVICES}",
}


def end_own_process(number: int, problem: PlanningProblem) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def run_until_killed(run_all: RunAll) -> None:
    list(run_all(end_own_process, range(8)))


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_killed_process_is_told_in_a_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Advisor, "advise", lambda advisor: run_until_killed(advisor.run_all))
    monkeypatch.setattr(plan_command, "search", lambda *search: run_until_killed(search[-1]))
    result = tmp_path / "result.json"

    code = main([*shlex.split(COMMANDS[command]), "--json", str(result)])

    assert code == EXIT_FAILED
    lines = capsys.readouterr().err.splitlines()
    assert "ended by signal 9" in lines[-1]
    assert "--jobs" in lines[-1]
    assert not any("Traceback" in line for line in lines)
    assert not result.exists()
