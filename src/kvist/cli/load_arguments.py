"""The flags that choose a load and its rate, in vLLM's names where it has them; and the requests they ask for."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from kvist.bench.load_source import (
    LoadSource,
    NamedLoad,
    Rate,
    RecordedLoad,
    Requests,
    default_requests,
    random_load,
)
from kvist.config.arguments import number, whole_number
from kvist.core.errors import ConfigError
from kvist.workload.arrival_process import RampUp
from kvist.workload.load_file import frozen_loads, read_load_file, shipped_loads
from kvist.workload.recorded_load import TRACE_FORMATS, read_recorded_load

QUICK_PROMPTS = 16
DEFAULT_NUM_PROMPTS = 100


def add_load_arguments(parser: argparse.ArgumentParser, *, rates: bool = True) -> None:
    """Add the flags. rates: False where all requests come at once."""
    group = parser.add_argument_group("load options")
    group.add_argument(
        "--load",
        "--dataset-name",
        default="random",
        metavar="NAME",
        help=f"random, or a load: {', '.join(shipped_loads().loads)} (default: random)",
    )
    group.add_argument("--load-file", type=Path, metavar="FILE.toml", help="where --load stands, if not in kvist")
    # Beside an engine's flags, --trace is where that one writes its steps.
    spellings = ("--trace", "--dataset-path") if rates else ("--dataset-path",)
    group.add_argument(
        *spellings, dest="recorded_load", type=Path, metavar="FILE", help="replay a recorded load instead"
    )
    group.add_argument(
        "--trace-format", default="auto", choices=("auto", *TRACE_FORMATS), help="of that file (default: auto)"
    )
    _add_counts(group, ("--trace-block-tokens",), "tokens per block id of that file (default: what fits its lengths)")
    _add_counts(group, ("--num-prompts",), "requests to send: the load's first ones (random: 100)")
    _add_counts(group, ("--random-input-len", "--input-len"), "tokens of a random prompt (default: 512)", default=512)
    _add_counts(group, ("--random-output-len", "--output-len"), "tokens of its answer (default: 128)", default=128)
    group.add_argument(
        "--random-range-ratio",
        type=number("--random-range-ratio", low=0),
        default=0.0,
        metavar="R",
        help="lengths are uniform within (1 - R) and (1 + R) times those (default: 0)",
    )
    _add_counts(group, ("--random-prefix-len",), "tokens that all random prompts share (default: 0)", default=0, low=0)
    _add_numbers(group, "--scale-lengths", "multiply all lengths, where a model's context is shorter", default=1.0)
    if rates:
        _add_rate_arguments(parser, group)


def _add_rate_arguments(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> None:
    _add_numbers(group, "--time-scale", "multiply all times between requests: 0.5 is twice as fast", default=1.0)
    rate = parser.add_argument_group("rate options")
    rate.add_argument(
        "--request-rate",
        type=_rate,
        metavar="N",
        help='requests per second, or "inf" for all at once (default: the load\'s own arrivals)',
    )
    _add_numbers(rate, "--burstiness", "shape of the gaps: 1 is Poisson, less is burstier (default: 1)", default=1.0)
    _add_counts(rate, ("--max-concurrency",), "closed loop: at most so many requests are open at once")
    rate.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="let the rate rise over the run")
    _add_numbers(rate, "--ramp-up-start-rps", "its first rate in requests per second")
    _add_numbers(rate, "--ramp-up-end-rps", "its last rate")


def chosen_requests(arguments: argparse.Namespace) -> Requests:
    """What the flags ask for. Raises ConfigError for what does not go together."""
    num_prompts = arguments.num_prompts
    if arguments.quick:
        num_prompts = min(num_prompts or QUICK_PROMPTS, QUICK_PROMPTS)
    return Requests(
        source=_source(arguments, num_prompts),
        rate=_chosen_rate(arguments) if hasattr(arguments, "request_rate") else None,
        num_prompts=num_prompts,
        length_factor=arguments.scale_lengths,
        time_factor=getattr(arguments, "time_scale", 1.0),
    )


def _source(arguments: argparse.Namespace, num_prompts: int | None) -> LoadSource:
    if arguments.recorded_load is not None:
        if arguments.load != "random":
            raise ConfigError(
                f"both --load {arguments.load} and the file {arguments.recorded_load} are given; give one"
            )
        trace_format = None if arguments.trace_format == "auto" else arguments.trace_format
        records = read_recorded_load(arguments.recorded_load, trace_format, block_tokens=arguments.trace_block_tokens)
        return RecordedLoad(arguments.recorded_load.name, records)
    if arguments.load_file is not None:
        loads = read_load_file(arguments.load_file)
        level = loads.service_level or frozen_loads().service_level
        return NamedLoad(loads.load(arguments.load), level)
    if arguments.load != "random":
        return default_requests(arguments.load)
    return random_load(
        num_prompts=num_prompts or DEFAULT_NUM_PROMPTS,
        input_len=arguments.random_input_len,
        output_len=arguments.random_output_len,
        range_ratio=arguments.random_range_ratio,
        prefix_len=arguments.random_prefix_len,
        seed=getattr(arguments, "seed", None) or 0,
    )


def _chosen_rate(arguments: argparse.Namespace) -> Rate | None:
    ramp = (arguments.ramp_up_start_rps, arguments.ramp_up_end_rps)
    if arguments.ramp_up_strategy is None:
        if ramp != (None, None):
            raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        if arguments.request_rate is None:
            if arguments.burstiness != 1.0:
                raise ConfigError("--burstiness needs --request-rate")
            return None
        return Rate(per_s=arguments.request_rate, burstiness=arguments.burstiness)
    if None in ramp or arguments.request_rate is not None:
        raise ConfigError("--ramp-up-strategy takes --ramp-up-start-rps and --ramp-up-end-rps and no --request-rate")
    cv = 1.0 / math.sqrt(arguments.burstiness)
    return Rate(ramp=RampUp(ramp[0], ramp[1], arguments.ramp_up_strategy == "exponential", cv))


def _rate(text: str) -> float:
    if text.strip().lower() in ("inf", "infinity"):
        return math.inf
    value = number("--request-rate", low=0)(text)
    if value == 0:
        raise ConfigError("--request-rate must be above 0")
    return value


def _add_counts(
    group: argparse._ArgumentGroup, flags: tuple[str, ...], text: str, *, default: int | None = None, low: int = 1
) -> None:
    group.add_argument(*flags, type=whole_number(flags[0], low=low), default=default, metavar="N", help=text)


def _add_numbers(group: argparse._ArgumentGroup, flag: str, text: str, *, default: float | None = None) -> None:
    def parse(word: str) -> float:
        value = number(flag, low=0)(word)
        if value == 0:
            raise ConfigError(f"{flag} must be above 0")
        return value

    group.add_argument(flag, type=parse, default=default, metavar="X", help=text)
