"""Plan how to serve a model: which placement, policy and router gives the most goodput, or the fewest devices.

Candidates are bounded by their step times, then simulated under the objective in rounds, with the schedulers, caches
and routers that serve. --gpus asks for the most goodput of so many devices, --rate for the fewest devices for that
many requests per second. With --profile the devices are CPU hosts like the one that it was measured on, and what is
printed last serves the plan here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kvist.cli.evaluate_in_parallel import task_runner
from kvist.cli.measured_time import measured_time
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.cli.plan_arguments import add_deployment_arguments, add_load_arguments, chosen_problem
from kvist.cli.plan_output import plan_document, plan_lines, write_report
from kvist.cli.plan_space import add_space_arguments, chosen_space
from kvist.cli.serve_config import serve_toml
from kvist.config.arguments import number, whole_number
from kvist.config.cluster_toml import cluster_toml
from kvist.planner.commands import plan_commands
from kvist.planner.plan import make_plan
from kvist.planner.search import FULL, QUICK, Goal, search
from kvist.report.written_file import write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_deployment_arguments(parser)
    add_load_arguments(parser)
    goal = parser.add_argument_group("goal").add_mutually_exclusive_group(required=True)
    goal.add_argument(
        "--gpus",
        "--hosts",
        type=whole_number("--gpus", low=1),
        metavar="N",
        help="the most goodput of N devices, or of N hosts with --profile",
    )
    goal.add_argument(
        "--rate", type=number("--rate", low=1e-9), metavar="R", help="the fewest devices for R requests per second"
    )
    add_space_arguments(parser)
    parser.add_argument(
        "--jobs", type=whole_number("--jobs", low=1), metavar="N", help="processes (default: all cores)"
    )
    parser.add_argument(
        "--config-out", type=Path, metavar="FILE.toml", help="write the planned cluster here, for `kvist simulate`"
    )
    parser.add_argument(
        "--serve-config-out",
        type=Path,
        metavar="FILE.toml",
        help="write the options of one of its replicas here, for `kvist serve --config`",
    )
    add_output_arguments(parser, model=False)


def run(arguments: argparse.Namespace) -> int:
    """Search, print the plan and write what was asked for."""
    check_output_files(arguments, "config_out", "serve_config_out")
    begun = measured_time()
    problem = chosen_problem(arguments)
    space = chosen_space(arguments, problem)
    rounds = QUICK if arguments.quick else FULL
    with task_runner(problem, num_processes=arguments.jobs) as run_all:
        found = search(space, problem, Goal(arguments.rate), rounds, run_all)
        plan = make_plan(found, problem, rounds, run_all, rate_per_s=arguments.rate)
    candidate = plan.winner.evaluation.candidate
    commands = plan_commands(
        candidate,
        problem,
        rate_per_s=plan.winner.point.rate_per_s,
        config_file=str(arguments.config_out or "plan.toml"),
    )
    config_text = cluster_toml(plan.config, profile=candidate.profile)
    took = measured_time() - begun
    document = result_document(
        "plan", plan_document(plan, problem, commands, config_text) | {"wall_s": took.wall_s, "cpu_s": took.cpu_s}
    )
    print("\n".join(plan_lines(plan, problem, commands)))
    if arguments.config_out is None:
        print(f"\n# plan.toml\n{config_text}", end="")
    else:
        write_whole(arguments.config_out, config_text)
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        write_report(arguments.report, document, plan, problem)
    if arguments.serve_config_out is not None:
        write_whole(arguments.serve_config_out, serve_toml(next(iter(commands.serve.values()))))
    return 0
