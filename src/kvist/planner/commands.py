"""The command lines of a plan: what simulates it, and what serves it as far as this version can."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from kvist.planner.candidate import Candidate
from kvist.planner.evaluation import PlanningProblem
from kvist.workload.adapting import num_starts


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCommands:
    """serve: of one replica, by the group's name. simulated_only: why this version cannot serve the plan; empty if it
    can."""

    simulate: str
    serve: dict[str, str]
    simulated_only: str


def plan_commands(
    candidate: Candidate, problem: PlanningProblem, *, rate_per_s: float, config_file: str
) -> PlanCommands:
    records = problem.load.draws[0]
    # The simulator is told the rate of those that follow nobody.
    start_rate = rate_per_s * num_starts(records) / len(records)
    simulate = [
        "kvist", "simulate", "--config", config_file, "--workload", problem.load.name,
        "--num-prompts", str(len(records)), "--request-rate", repr(start_rate), "--capacity", "1",
    ]  # fmt: skip
    serve = {
        name: shlex.join(
            [
                "kvist", "serve", problem.deployment.model, "--policy", candidate.policy,
                "--max-num-batched-tokens", str(candidate.token_budget), "--max-num-seqs", str(candidate.max_num_seqs),
            ]
        )
        for name in candidate.shapes
    }  # fmt: skip
    return PlanCommands(simulate=shlex.join(simulate), serve=serve, simulated_only=_why_not(candidate, problem))


def _why_not(candidate: Candidate, problem: PlanningProblem) -> str:
    missing = []
    if problem.deployment.device.kind != "cpu":
        missing.append(f"a {problem.deployment.device.name}")
    if any(shape.tensor_parallel_size > 1 for shape in candidate.shapes.values()):
        missing.append("tensor parallel replicas")
    if any(shape.pipeline_parallel_size > 1 for shape in candidate.shapes.values()):
        missing.append("pipeline parallel replicas")
    if candidate.num_units > 1 or any(shape.count > 1 for shape in candidate.shapes.values()):
        missing.append("several replicas behind one router")
    if candidate.is_disaggregated:
        missing.append("KV transfer between replicas")
    return f"this version does not serve with {', '.join(missing)}" if missing else ""
