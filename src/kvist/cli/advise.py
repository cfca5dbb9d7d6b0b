"""Advise which techniques to use for a load: from a plain engine through the must-haves to what still pays.

Optimizes in stages: time to first token, then time per output token, then throughput. Each step is simulated; a
technique is taken only if it gains what its complexity asks for. The survey's selection guide is where the advice
starts, and what it is compared with. With --profile the devices are CPU hosts like the one that it was measured on:
techniques are those that this version serves there, and the last lines printed serve the advice and drive it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvist.cli.advise_output import advice_document, advice_lines, write_report
from kvist.cli.evaluate_in_parallel import task_runner
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.cli.plan_arguments import add_deployment_arguments, add_load_arguments, chosen_problem
from kvist.config.arguments import whole_number
from kvist.core.errors import ConfigError
from kvist.costmodel.model_size import count_parameters
from kvist.planner.advisor import Advice, Advisor
from kvist.planner.evaluation import Effort
from kvist.planner.guide import SCENARIOS, Scenario, size_choice
from kvist.report.written_file import write_whole

FULL = Effort(num_lifetimes=2.0, min_requests=200, tolerance=0.06)
QUICK = Effort(num_lifetimes=0.5, min_requests=30, tolerance=0.3)
FULL_REQUESTS = 400
QUICK_REQUESTS = 60
DEFAULT_GPUS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scenario",
        choices=list(SCENARIOS),
        help="a kind of service: sets the load, the objective and the number of devices, unless they are given",
    )
    add_deployment_arguments(parser)
    add_load_arguments(parser, required=False)
    parser.add_argument(
        "--gpus",
        "--hosts",
        type=whole_number("--gpus", low=1),
        metavar="N",
        help=f"devices to serve on (default: {DEFAULT_GPUS}; large-cluster: 32), or hosts with --profile (1)",
    )
    parser.add_argument(
        "--jobs", type=whole_number("--jobs", low=1), metavar="N", help="processes (default: all cores)"
    )
    parser.add_argument(
        "--configs", type=Path, metavar="FOLDER", help="write each simulated setup here, for `kvist simulate --config`"
    )
    add_output_arguments(parser, model=False)


def run(arguments: argparse.Namespace) -> int:
    """Walk the stages, print the table and write what was asked for."""
    check_output_files(arguments)
    if arguments.configs is not None and not arguments.configs.is_dir():
        raise ConfigError(f"--configs {arguments.configs}: there is no such folder")
    scenario = SCENARIOS.get(arguments.scenario or "")
    if scenario is None and (arguments.workload is None or arguments.slo is None):
        raise ConfigError(f"give --scenario ({', '.join(SCENARIOS)}), or --workload and --slo")
    if scenario is not None:
        arguments.workload = arguments.workload or scenario.load
        arguments.slo = arguments.slo or scenario.objective
    arguments.num_prompts = arguments.num_prompts or (QUICK_REQUESTS if arguments.quick else FULL_REQUESTS)
    problem = chosen_problem(arguments)
    size, size_techniques = size_choice(problem.model.num_parameters or count_parameters(problem.model))
    scenario_techniques = () if scenario is None else scenario.techniques
    recommended = (*scenario_techniques, *size_techniques)
    with task_runner(problem, num_processes=arguments.jobs, what="setups") as run_all:
        advice = Advisor(
            problem=problem,
            num_devices=arguments.gpus or _usual_number(arguments, scenario),
            effort=QUICK if arguments.quick else FULL,
            run_all=run_all,
            say=lambda text: print(f"kvist advise: simulating {text}", file=sys.stderr, flush=True),
            preferred=recommended,
        ).advise()
    folder = arguments.configs or Path("advice")
    guide = [size] if scenario is None else [f"{scenario.name}: {scenario.first_choice}", size]
    print("\n".join(advice_lines(advice, problem, guide=guide, recommended=recommended, folder=folder)))
    document = result_document(
        "advise",
        {
            "scenario": arguments.scenario,
            **advice_document(advice, problem, guide=guide, recommended=recommended, folder=folder),
        },
    )
    if arguments.configs is not None:
        _write_configs(advice, arguments.configs)
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        write_report(arguments.report, document, advice)
    return 0


def _usual_number(arguments: argparse.Namespace, scenario: Scenario | None) -> int:
    """Of devices, where it is not given."""
    if arguments.profile:
        return 1
    return DEFAULT_GPUS if scenario is None else scenario.num_devices


def _write_configs(advice: Advice, folder: Path) -> None:
    for assessed in (advice.baseline, *(each.after for each in (*advice.taken, *advice.refused))):
        write_whole(folder / f"{assessed.config_hash}.toml", assessed.config_text)
