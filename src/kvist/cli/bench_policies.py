"""Compare scheduling policies on one load, in one process over one loaded model: the same requests, in turns.

The load's rate is a share of the capacity, which is measured first. Latency targets are multiples of what a request
takes alone, or given in ms. All policies must give the same tokens. --virtual takes step times from a model instead of
running any, once, as nothing varies.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvist.cli.model_source import add_config_file_argument, find_model
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.cli.policy_table import policy_lines, write_policy_report
from kvist.cli.size_arguments import add_size_arguments, num_repeats
from kvist.config.arguments import add_config_arguments, number, whole_number
from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.config.load import load_configs
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import POLICIES, SchedulerConfig
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.costmodel.linear_step_time import LinearStepTime, linear_step_time
from kvist.workload.load_file import Load, LoadFile, ServiceLevel, frozen_loads, read_load_file
from kvist.workload.shortening import shortened
from kvist.workload.trace_record import TraceRecord, count_prompt_tokens

if TYPE_CHECKING:
    from kvist.bench.policy_comparison import PolicyComparison
    from kvist.bench.policy_engines import PolicyEngine, Variant

SECTIONS = {"model": ModelConfig, "cache": CacheConfig, "executor": ExecutorConfig}
DRAFT_CAPACITY = 2.0  # requests per second for which memory is laid out: a load that changes has more of them at more
QUICK_SHARE = 0.04
SMALL_MACHINE = LinearStepTime(  # about a model of 135M parameters on two cores
    per_step_s=0.008, per_token_s=5e-4, per_decode_key_s=1.5e-6, per_prefill_pair_s=2e-7
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--load", required=True, metavar="NAME", help=f"one of {', '.join(frozen_loads().loads)}")
    parser.add_argument("--load-file", type=Path, metavar="FILE", help="TOML file that states the load instead")
    parser.add_argument(
        "--policies",
        type=_policies,
        default=POLICIES,
        metavar="NAME,...",
        help=f"which to compare (default: {','.join(POLICIES)})",
    )
    parser.add_argument(
        "--token-budget",
        type=_numbers("--token-budget"),
        default=(256,),
        metavar="N,...",
        help="tokens of a step; each policy runs with each, slo_budget with the largest only (default: 256)",
    )
    parser.add_argument(
        "--max-num-seqs",
        type=whole_number("--max-num-seqs", low=1),
        default=64,
        metavar="N",
        help="most requests running at once (default: 64)",
    )
    add_size_arguments(parser, once_with="--quick and --virtual")
    parser.add_argument(
        "--capacity",
        type=number("--capacity", low=1e-9),
        metavar="R",
        help="requests per second that the load's rate is a share of (default: measured with all at once)",
    )
    for name in ("ttft", "tpot"):
        parser.add_argument(
            f"--{name}-ms", type=number(f"--{name}-ms", low=0.001), metavar="MS", help=f"{name.upper()} target of all"
        )
    parser.add_argument(
        "--virtual",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="FILE.toml",
        help="virtual time: step times from the file's table [step_time] (default: a small machine's)",
    )
    add_output_arguments(parser, model=False)
    add_config_file_argument(parser)
    add_config_arguments(parser, SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments)
    load, level = _load(arguments)
    # Here, because `--help` must not wait for the engine's imports.
    from kvist.bench.policy_comparison import compare_policies, measure_capacity
    from kvist.bench.unloaded_latency import levels_of, targets_of

    variants = _variants(arguments)
    drafted = load.records(capacity_per_s=arguments.capacity or DRAFT_CAPACITY)
    engine, close = _engine(arguments, load, drafted)
    try:
        _say("measuring what requests take alone")
        unloaded = engine.unloaded(max_tokens=_longest(drafted))
        if arguments.capacity is None:
            _say("measuring the capacity")
        budget = max(arguments.token_budget)
        capacity = arguments.capacity or measure_capacity(engine, drafted, budget)
        comparison = compare_policies(
            engine,
            variants,
            load.records(capacity_per_s=capacity),
            capacity_per_s=capacity,
            targets_of=targets_of(levels_of(level, ttft_ms=arguments.ttft_ms, tpot_ms=arguments.tpot_ms), unloaded),
            num_repeats=_repeats(arguments),
            say=_say,
        )
    finally:
        close()
    document = result_document("bench policies", _result(arguments, comparison), repeats=_repeats(arguments))
    print("\n".join(policy_lines(document)))
    if arguments.json is not None:
        write_json(arguments.json, document)
    if arguments.report is not None:
        write_policy_report(arguments.report, document, comparison)
    return 0 if comparison.equal_outputs else 1


def _result(arguments: argparse.Namespace, comparison: PolicyComparison) -> dict[str, object]:
    return {
        "load": arguments.load,
        "is_virtual": arguments.virtual is not None,
        "capacity_per_s": comparison.capacity_per_s,
        "equal_outputs": comparison.equal_outputs,
        "rows": [runs.row() for runs in comparison.runs],
        "results": [result for runs in comparison.runs for result in runs.results],
    }


def _load(arguments: argparse.Namespace) -> tuple[Load, ServiceLevel]:
    loads: LoadFile = frozen_loads() if arguments.load_file is None else read_load_file(arguments.load_file)
    load = loads.load(arguments.load)
    share = arguments.scale or (QUICK_SHARE if arguments.quick else 1.0)
    level = loads.service_level or frozen_loads().service_level
    assert level is not None
    return (load if share == 1.0 else shortened(load, share)), level


def _variants(arguments: argparse.Namespace) -> list[Variant]:
    from kvist.bench.policy_engines import Variant

    largest = max(arguments.token_budget)
    return [
        Variant(policy, budget)
        for policy in arguments.policies
        for budget in sorted({largest} if policy == "slo_budget" else set(arguments.token_budget))
    ]


def _engine(
    arguments: argparse.Namespace, load: Load, records: Sequence[TraceRecord]
) -> tuple[PolicyEngine, Callable[[], None]]:
    """The engine, and what frees it."""
    from kvist.bench.policy_engines import RealPolicyEngine, VirtualPolicyEngine

    configs = load_configs(arguments, SECTIONS)
    budget = max(arguments.token_budget)
    scheduler = SchedulerConfig(max_num_seqs=arguments.max_num_seqs, max_num_batched_tokens=budget)
    cache: CacheConfig = configs["cache"]
    num_blocks = _num_blocks(load, records, cache.block_size)
    if arguments.virtual is not None:
        step_times = _step_times(arguments.virtual)
        engine = VirtualPolicyEngine(step_times, scheduler, num_blocks=num_blocks, max_token_budget=budget)
        return engine, lambda: None
    from kvist.bench.loaded_model import load_model

    config = EngineConfig(model=configs["model"], cache=cache, executor=configs["executor"], scheduler=scheduler)
    loaded = load_model(config, find_model(configs["model"]), num_blocks=num_blocks)
    return RealPolicyEngine(loaded, scheduler, num_blocks=num_blocks), loaded.close


def _num_blocks(load: Load, records: Sequence[TraceRecord], block_size: int) -> int:
    """A pool for all that the load holds at its end, or for the share of it that the load states."""
    prompts = count_prompt_tokens(records)
    totals = [prompt + record.num_output_tokens * record.n for prompt, record in zip(prompts, records, strict=True)]
    num_tokens = sum(totals) * (load.kv_cache_tokens_fraction or 1.0)
    if load.kv_cache_tokens_fraction is not None:  # of what sessions hold: the longest of each contains the others
        longest: dict[str | None, int] = {}
        for record, total in zip(records, totals, strict=True):
            longest[record.session_id] = max(longest.get(record.session_id, 0), total)
        num_tokens = sum(longest.values()) * load.kv_cache_tokens_fraction
    # Twice the longest: another capacity draws other lengths where a load changes with time.
    return max(int(num_tokens), 2 * max(totals)) // block_size + 2


def _longest(records: Sequence[TraceRecord]) -> int:
    prompts = count_prompt_tokens(records)
    return max(prompt + record.num_output_tokens for prompt, record in zip(prompts, records, strict=True))


def _step_times(path: Path) -> LinearStepTime:
    if path == Path():
        return SMALL_MACHINE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("step_time")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--virtual: cannot read {path}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"--virtual: {path} has no table [step_time]")
    return linear_step_time(table, where=f"{path}: step_time")


def _repeats(arguments: argparse.Namespace) -> int:
    return num_repeats(arguments, is_once=arguments.quick or arguments.virtual is not None)


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in POLICIES:
            raise ConfigError(f"--policies: there is no policy {name!r}.{did_you_mean(name, POLICIES)}")
    return names


def _numbers(label: str) -> Callable[[str], tuple[int, ...]]:
    parse = whole_number(label, low=16)
    return lambda text: tuple(parse(part) for part in text.split(","))


def _say(text: str) -> None:
    print(f"kvist bench policies: {text}", file=sys.stderr, flush=True)
