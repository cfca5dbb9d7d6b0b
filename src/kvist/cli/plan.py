"""Plan how to serve a model: which placement, policy and router gives the most goodput, or the fewest devices.

Candidates are bounded by their step times, then simulated under the objective in rounds, with the schedulers, caches
and routers that serve. --gpus asks for the most goodput of so many devices, --rate for the fewest devices for that
many requests per second.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kvist.cli.evaluate_in_parallel import task_runner
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.cli.plan_arguments import add_deployment_arguments, add_load_arguments, chosen_problem
from kvist.cli.plan_output import plan_document, plan_lines, write_report
from kvist.config.arguments import number, whole_number
from kvist.config.cluster_toml import cluster_toml
from kvist.core.errors import ConfigError
from kvist.costmodel.number_format import FORMATS, find_format
from kvist.planner.candidate import Candidate
from kvist.planner.commands import plan_commands
from kvist.planner.evaluation import PlanningProblem
from kvist.planner.plan import make_plan
from kvist.planner.search import FULL, QUICK, Goal, search
from kvist.planner.search_space import SpaceLimits, candidates

MAX_DEVICES_PER_UNIT = 8
QUICK_BUDGET = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_deployment_arguments(parser)
    add_load_arguments(parser)
    goal = parser.add_argument_group("goal").add_mutually_exclusive_group(required=True)
    goal.add_argument("--gpus", type=whole_number("--gpus", low=1), metavar="N", help="the most goodput of N devices")
    goal.add_argument(
        "--rate", type=number("--rate", low=1e-9), metavar="R", help="the fewest devices for R requests per second"
    )
    space = parser.add_argument_group("what may be chosen")
    space.add_argument(
        "--dtype",
        default="bf16",
        metavar="FORMATS",
        help=f"number formats of the weights, by commas: {', '.join(FORMATS)} (default: %(default)s)",
    )
    space.add_argument(
        "--host-cache-gb",
        default="0",
        metavar="GB",
        help="host memory per device that keeps evicted KV, by commas (default: %(default)s)",
    )
    space.add_argument("--no-split", action="store_true", help="no disaggregation of prefill and decode")
    space.add_argument(
        "--max-devices-per-unit",
        type=whole_number("--max-devices-per-unit", low=1),
        default=MAX_DEVICES_PER_UNIT,
        metavar="N",
        help="devices of a group that is repeated to fill the cluster (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs", type=whole_number("--jobs", low=1), metavar="N", help="processes (default: all cores)"
    )
    parser.add_argument(
        "--config-out", type=Path, metavar="FILE.toml", help="write the planned cluster here, for `kvist simulate`"
    )
    add_output_arguments(parser, model=False)


def run(arguments: argparse.Namespace) -> int:
    """Search, print the plan and write what was asked for."""
    check_output_files(arguments)
    problem = chosen_problem(arguments)
    space = _space(arguments, problem)
    rounds = QUICK if arguments.quick else FULL
    with task_runner(problem, num_processes=arguments.jobs) as run_all:
        found = search(space, problem, Goal(arguments.rate), rounds, run_all)
        plan = make_plan(found, problem, rounds, run_all, rate_per_s=arguments.rate)
    commands = plan_commands(
        plan.winner.evaluation.candidate,
        problem,
        rate_per_s=plan.winner.point.rate_per_s,
        config_file=str(arguments.config_out or "plan.toml"),
    )
    config_text = cluster_toml(plan.config)
    document = result_document("plan", plan_document(plan, problem, commands, config_text))
    print("\n".join(plan_lines(plan, problem, commands)))
    if arguments.config_out is None:
        print(f"\n# plan.toml\n{config_text}", end="")
    else:
        arguments.config_out.write_text(config_text, encoding="utf-8")
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        write_report(arguments.report, document, plan, problem)
    return 0


def _space(arguments: argparse.Namespace, problem: PlanningProblem) -> list[Candidate]:
    limits = SpaceLimits(
        max_devices=arguments.gpus or arguments.max_devices_per_unit,
        max_devices_per_unit=arguments.max_devices_per_unit,
        number_formats=[find_format(name).name for name in arguments.dtype.split(",")],
        host_cache_gbs=_numbers("--host-cache-gb", arguments.host_cache_gb),
        splits=not arguments.no_split,
    )
    space = candidates(problem.model, problem.deployment, limits)
    return [each for each in space if each.token_budget == QUICK_BUDGET] if arguments.quick else space


def _numbers(flag: str, text: str) -> list[float]:
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{flag} {text!r}: write numbers, with commas between them") from error
    if not all(0.0 <= value < float("inf") for value in values):
        raise ConfigError(f"{flag} {text!r}: sizes are 0 or more")
    return values
