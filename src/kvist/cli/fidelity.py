"""Check predictions against this machine: the same loads through its engine and through the simulator.

The engine plays real loads at shares of its measured capacity, with and without shared prefixes, each several times;
the simulator predicts them from a profile, whose steps are timed again between those of the runs: so it knows how fast
the machine was. Times, throughput, hit share and preemptions stand side by side, with the spread of the repeats. A long
measurement can be done in several calls: --parts keeps what is done, --max-seconds ends a call. Exit code 3: parts are
left, call again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvist.cli.model_source import add_config_file_argument, find_model
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.config.arguments import add_config_arguments, number, whole_number
from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.config.load import load_configs
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import POLICIES, SchedulerConfig
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.workload.load_file import shipped_loads

if TYPE_CHECKING:
    from kvist.bench.fidelity.session import FidelitySession
    from kvist.bench.fidelity.setting import FidelitySetting

SECTIONS = {"model": ModelConfig, "cache": CacheConfig, "executor": ExecutorConfig}
EXIT_PARTS_LEFT = 3
REPEATS, QUICK_REPEATS = 3, 1
RUN_S, QUICK_RUN_S = 12.0, 2.0
PROFILE_S, QUICK_PROFILE_S = 20.0, 2.0
RETRIES = 2
QUICK_LOAD_FACTORS = (0.7, 1.2)
DEFAULT_TOKEN_BUDGET = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(shipped_loads().loads)
    parser.add_argument(
        "--load",
        type=_loads,
        metavar="NAME,...",
        help=f"at half their lengths (default: chat, retrieval, and service_chat over a small pool); of {names}",
    )
    parser.add_argument(
        "--load-factors",
        type=_factors,
        metavar="F,...",
        help="rates as shares of the measured capacity (default: 0.5,0.7,0.9,1.2)",
    )
    parser.add_argument(
        "--repeats", type=whole_number("--repeats", low=1), metavar="N", help=f"runs of each (default: {REPEATS})"
    )
    parser.add_argument(
        "--seconds-per-run",
        type=number("--seconds-per-run", low=0.1),
        metavar="S",
        help=f"as many requests as take so long at full capacity (default: {RUN_S:g})",
    )
    parser.add_argument(
        "--retries",
        type=whole_number("--retries", low=0),
        metavar="N",
        help=f"do a part again, up to so often, that other processes disturbed (default: {RETRIES})",
    )
    parser.add_argument("--policy", choices=POLICIES, default="chunked_prefill", help="how a step is filled")
    parser.add_argument(
        "--max-num-batched-tokens",
        type=whole_number("--max-num-batched-tokens", low=16),
        default=DEFAULT_TOKEN_BUDGET,
        metavar="N",
        help="token budget of a step (default: %(default)s)",
    )
    parser.add_argument(
        "--max-num-seqs",
        type=whole_number("--max-num-seqs", low=1),
        default=64,
        metavar="N",
        help="most requests running at once (default: %(default)s)",
    )
    parser.add_argument("--parts", type=Path, metavar="FILE", help="keep finished parts here, and go on from there")
    parser.add_argument(
        "--max-seconds",
        type=number("--max-seconds", low=0.0),
        metavar="S",
        help="begin no part after so many seconds; needs --parts",
    )
    add_output_arguments(parser, model=False)
    add_config_file_argument(parser)
    add_config_arguments(parser, SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments)
    if arguments.max_seconds is not None and arguments.parts is None:
        raise ConfigError("--max-seconds needs --parts FILE, where what is done is kept for the next call")
    configs = load_configs(arguments, SECTIONS)
    cache: CacheConfig = configs["cache"]
    if not cache.enable_prefix_caching or cache.eviction_policy != "lru":
        raise ConfigError(
            "the simulated engine caches prefixes and evicts the least recently used; leave that as it is"
        )
    # Here, because `--help` must not wait for what measures.
    from kvist.bench.fidelity.table import text_lines, write_report

    setting = _setting(arguments)
    session, setup = _measure(arguments, setting, configs)
    left, total = len(session.parts_left), len(setting.parts)
    if left:
        _say(f"{left} of {total} parts are left: repeat the same call")
        return EXIT_PARTS_LEFT
    document = result_document("fidelity", {"setup": setup, **session.result()}, repeats=setting.repeats)
    print("\n".join(text_lines(document)))
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        write_report(arguments.report, document)
    return 0


def _setting(arguments: argparse.Namespace) -> FidelitySetting:
    from kvist.bench.fidelity.setting import DEFAULT_LOADS, LOAD_FACTORS, MAX_NUM_QUEUED, FidelitySetting, scenarios

    quick = arguments.quick
    retries = arguments.retries
    return FidelitySetting(
        scenarios=scenarios(
            arguments.load or DEFAULT_LOADS,
            arguments.load_factors or (QUICK_LOAD_FACTORS if quick else LOAD_FACTORS),
            has_tight_pool=arguments.load is None and not quick,
        ),
        scheduler=SchedulerConfig(
            policy=arguments.policy,
            max_num_batched_tokens=arguments.max_num_batched_tokens,
            max_num_seqs=arguments.max_num_seqs,
            max_num_queued_reqs=MAX_NUM_QUEUED,
        ),
        repeats=arguments.repeats or (QUICK_REPEATS if quick else REPEATS),
        seconds=arguments.seconds_per_run or (QUICK_RUN_S if quick else RUN_S),
        profile_s=QUICK_PROFILE_S if quick else PROFILE_S,
        is_quick=quick,
        retries=(0 if quick else RETRIES) if retries is None else retries,
    )


def _measure(
    arguments: argparse.Namespace, setting: FidelitySetting, configs: Mapping[str, Any]
) -> tuple[FidelitySession, dict[str, Any]]:
    """The session, with as many parts done as there was time for, and its set-up. Any: configurations; JSON."""
    from kvist.bench.fidelity.measured import MeasuredEngine, num_blocks
    from kvist.bench.fidelity.parts import Parts
    from kvist.bench.fidelity.session import FidelitySession
    from kvist.bench.loaded_model import load_model
    from kvist.bench.machine import source_version
    from kvist.runtime.real_clock import RealClock

    cache, scheduler = configs["cache"], setting.scheduler
    config = EngineConfig(model=configs["model"], cache=cache, executor=configs["executor"], scheduler=scheduler)
    loaded = load_model(config, find_model(config.model), num_blocks=num_blocks(cache.block_size))
    try:
        setup = {
            "model": config.model.model,
            "executor": loaded.executor.description,
            "policy": scheduler.policy,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_num_seqs": scheduler.max_num_seqs,
            "repeats": setting.repeats,
            "seconds_per_run": setting.seconds,
            "parts": setting.parts,
        }
        session = FidelitySession(
            setting,
            Parts(arguments.parts, setup),
            model=config.model.model,
            block_size=cache.block_size,
            max_model_len=loaded.max_model_len,
        )
        if session.parts_left:
            clock = RealClock()
            session.run(
                MeasuredEngine(loaded, setting, clock),
                clock,
                max_seconds=float("inf") if arguments.max_seconds is None else arguments.max_seconds,
                commit=source_version(),
                say=_say,
            )
    finally:
        loaded.close()
    return session, setup


def _loads(text: str) -> tuple[str, ...]:
    names, known = tuple(text.split(",")), shipped_loads().loads
    for name in names:
        if name not in known:
            raise ConfigError(f"--load: there is no load {name!r}.{did_you_mean(name, known)}")
        if any(record.n > 1 for record in shipped_loads().load(name).records(capacity_per_s=1.0)):
            raise ConfigError(f"--load {name}: the simulator has no requests of several samples")
    return names


def _factors(text: str) -> tuple[float, ...]:
    parse: Callable[[str], float] = number("--load-factors", low=0.01)
    return tuple(sorted({parse(word) for word in text.split(",")}))


def _say(text: str) -> None:
    print(f"kvist fidelity: {text}", file=sys.stderr, flush=True)
