"""What `kvist plan` may choose from: the flags, and the candidates that they leave."""

from __future__ import annotations

import argparse

from kvist.config.arguments import whole_number
from kvist.core.errors import ConfigError
from kvist.costmodel.number_format import FORMATS, find_format
from kvist.planner.candidate import Candidate
from kvist.planner.evaluation import PlanningProblem
from kvist.planner.host_space import HostLimits, host_candidates
from kvist.planner.search_space import SpaceLimits, candidates

MAX_DEVICES_PER_UNIT = 8
DEFAULT_DTYPE = "bf16"
QUICK_BUDGET = 2048


def add_space_arguments(parser: argparse.ArgumentParser) -> None:
    space = parser.add_argument_group("what may be chosen")
    space.add_argument(
        "--dtype",
        metavar="FORMATS",
        help=f"number formats of the weights, by commas: {', '.join(FORMATS)} (default: {DEFAULT_DTYPE})",
    )
    space.add_argument(
        "--host-cache-gb",
        metavar="GB",
        help="host memory per device that keeps evicted KV, by commas (default: 0)",
    )
    space.add_argument(
        "--kv-cache-tokens",
        metavar="TOKENS",
        help="with --profile: sizes of a host's KV pool, by commas (default: what its memory has room for)",
    )
    space.add_argument("--no-split", action="store_true", help="no disaggregation of prefill and decode")
    space.add_argument(
        "--max-devices-per-unit",
        type=whole_number("--max-devices-per-unit", low=1),
        default=MAX_DEVICES_PER_UNIT,
        metavar="N",
        help="devices of a group that is repeated to fill the cluster (default: %(default)s)",
    )


def chosen_space(arguments: argparse.Namespace, problem: PlanningProblem) -> list[Candidate]:
    """Raises ConfigError if nothing fits, or for flags that make no sense together."""
    most = arguments.gpus or arguments.max_devices_per_unit
    if problem.hosts:
        if arguments.dtype is not None or arguments.host_cache_gb is not None:
            raise ConfigError(
                "--dtype and --host-cache-gb are of the catalogue's devices. On a measured host a number format is a "
                "choice where there is a profile of it: give --profile once for each"
            )
        return host_candidates(
            problem.hosts,
            HostLimits(
                max_hosts=most,
                max_hosts_per_unit=arguments.max_devices_per_unit,
                splits=not arguments.no_split,
                pool_tokens=[int(size) for size in _numbers("--kv-cache-tokens", arguments.kv_cache_tokens or "")],
                has_reuse=problem.facts.computed_share < 1.0,
                is_quick=arguments.quick,
            ),
            longest_request=max(prompt + output for prompt, output in problem.load.lengths()),
        )
    if arguments.kv_cache_tokens is not None:
        raise ConfigError("--kv-cache-tokens is of measured hosts: it needs --profile")
    limits = SpaceLimits(
        max_devices=most,
        max_devices_per_unit=arguments.max_devices_per_unit,
        number_formats=[find_format(name).name for name in (arguments.dtype or DEFAULT_DTYPE).split(",")],
        host_cache_gbs=_numbers("--host-cache-gb", arguments.host_cache_gb or "0"),
        splits=not arguments.no_split,
    )
    space = candidates(problem.model, problem.deployment, limits)
    return [each for each in space if each.token_budget == QUICK_BUDGET] if arguments.quick else space


def _numbers(flag: str, text: str) -> list[float]:
    """None of an empty text."""
    try:
        values = [float(word) for word in text.split(",") if text]
    except ValueError as error:
        raise ConfigError(f"{flag} {text!r}: write numbers, with commas between them") from error
    if not all(0.0 <= value < float("inf") for value in values):
        raise ConfigError(f"{flag} {text!r}: sizes are 0 or more")
    return values
