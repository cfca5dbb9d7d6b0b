"""The command lines of a plan: what simulates it, what serves it as far as this version can, and what drives that."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from kvist.config.cluster_config import ReplicaGroupConfig
from kvist.planner.candidate import SLO_BUDGET, Candidate
from kvist.planner.evaluation import PlanningProblem, placed
from kvist.workload.adapting import arrival_stretch, num_starts
from kvist.workload.recorded_load import SHIPPED_TRACES


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCommands:
    """serve: of one replica, by the group's name. simulated_only: why this version cannot serve the plan; empty if it
    can. drive: sends the load to the server at the planned rate; empty where `kvist bench serve` has no such load.
    """

    simulate: str
    serve: dict[str, str]
    simulated_only: str
    drive: str = ""


def plan_commands(
    candidate: Candidate, problem: PlanningProblem, *, rate_per_s: float, config_file: str
) -> PlanCommands:
    config, _ = placed(candidate, problem)
    simulated_only = _why_not(candidate, problem)
    return PlanCommands(
        simulate=simulate_command(problem, rate_per_s=rate_per_s, config_file=config_file),
        serve={group.name: shlex.join(_serve_words(candidate, problem, group)) for group in config.groups},
        simulated_only=simulated_only,
        drive="" if simulated_only else shlex.join(_drive_words(problem, _start_rate_per_s(problem, rate_per_s))),
    )


def simulate_command(problem: PlanningProblem, *, rate_per_s: float, config_file: str) -> str:
    """The line that simulates the problem's load at a rate, of all requests, on the cluster of a file."""
    words = [
        "kvist", "simulate", "--config", config_file, "--workload", problem.load.name, *problem.load.words,
        "--request-rate", repr(_start_rate_per_s(problem, rate_per_s)), "--capacity", "1",
    ]  # fmt: skip
    return shlex.join(words)


def _start_rate_per_s(problem: PlanningProblem, rate_per_s: float) -> float:
    """Of the requests that follow nobody: what simulator and client are told."""
    records = problem.load.draws[0]
    return rate_per_s * num_starts(records) / len(records)


def _serve_words(candidate: Candidate, problem: PlanningProblem, group: ReplicaGroupConfig) -> list[str]:
    """Of one replica. On a measured host the engine is the one that was measured, and its pool as large as planned."""
    words = ["kvist", "serve", group.model or problem.deployment.model]
    if candidate.profile is not None:
        words += problem.hosts[candidate.profile].engine.flags
    words += [
        "--policy", group.policy, "--max-num-batched-tokens", str(group.max_num_batched_tokens),
        "--max-num-seqs", str(group.max_num_seqs),
    ]  # fmt: skip
    if candidate.profile is not None:
        words += ["--max-total-tokens", str(group.kv_cache_tokens)]
    if group.policy == SLO_BUDGET:
        words += ["--default-tpot-ms", f"{group.default_tpot_ms:g}"]
        words += [] if group.default_ttft_ms is None else ["--default-ttft-ms", f"{group.default_ttft_ms:g}"]
    return words if group.enable_prefix_caching else [*words, "--no-enable-prefix-caching"]


def _drive_words(problem: PlanningProblem, start_rate_per_s: float) -> list[str]:
    """Sends the same requests with the same arrivals; nothing where they cannot be asked for."""
    name, objective, records = problem.load.name, problem.deployment.objective, problem.load.draws[0]
    stretch = arrival_stretch(records, start_rate_per_s)
    is_chained = num_starts(records) < len(records)
    is_named = problem.load.seed is not None
    if stretch is None or name in SHIPPED_TRACES or (is_chained and not is_named):
        return []
    # Pauses are not to be stretched: where there are any, the named load is told its capacity instead.
    pace = ["--capacity", repr(1.0 / stretch)] if is_chained else ["--time-scale", repr(stretch)]
    if is_named and not is_chained:
        pace = ["--capacity", "1", *pace]
    targets = [
        f"{metric}:{seconds * 1e3:g}"
        for metric, seconds in (("ttft", objective.ttft_s), ("tpot", objective.tpot_s))
        if seconds is not None
    ]
    return [
        "kvist", "bench", "serve", "--load" if is_named else "--trace", name, *problem.load.words, *pace,
        "--goodput", *targets,
    ]  # fmt: skip


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
