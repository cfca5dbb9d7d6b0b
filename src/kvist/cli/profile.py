"""Measure this machine's executor into a profile for the simulator: which step takes how long.

A grid of steps (decodes by batch and context, chunks of prompts, both in one) is timed in rounds, and the host's part
beside it, in less than two minutes. The mean of a step's times counts; how far the machine's speed went meanwhile is
said.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from kvist.cli.model_source import add_model_arguments, find_model
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.config.arguments import add_config_arguments, to_command_line
from kvist.config.engine_config import EngineConfig
from kvist.config.load import ENGINE_SECTIONS, engine_config, load_configs
from kvist.config.model_config import DEFAULT_MODEL
from kvist.report.written_file import write_whole

STEADY_DRIFT = 0.15  # beyond it a profile says more of the hour than of the machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the file to write, and the options of the engine."""
    add_model_arguments(parser)
    parser.add_argument(
        "--output", type=Path, default=Path("profile.json"), metavar="FILE", help="default: profile.json"
    )
    add_output_arguments(parser, model=False)
    add_config_arguments(parser, ENGINE_SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments, "output")
    config = engine_config(load_configs(arguments, ENGINE_SECTIONS))
    # Here, because `--help` must not wait for what measures.
    import msgspec

    from kvist.bench.loaded_model import load_model
    from kvist.bench.machine import machine_facts
    from kvist.bench.profile import profile_model
    from kvist.bench.profile_grid import QUICK, ProfileSize
    from kvist.cli.profile_report import profile_lines, profile_page
    from kvist.costmodel.profile_table import ProfiledEngine
    from kvist.execution.choice import choose_executor
    from kvist.runtime.real_clock import RealClock
    from kvist.weights.host_memory import free_memory_bytes

    size = QUICK if arguments.quick else ProfileSize()
    scheduler = replace(config.scheduler, max_num_batched_tokens=size.max_step_tokens)
    num_blocks = -(-size.max_kv_tokens // config.cache.block_size) + 1
    free_bytes = free_memory_bytes()
    loaded = load_model(replace(config, scheduler=scheduler), find_model(config.model), num_blocks=num_blocks)
    try:
        facts = {key: str(value) for key, value in machine_facts().items()}
        table = profile_model(
            loaded,
            RealClock(),
            size,
            name=config.model.model,
            machine=facts,
            engine=ProfiledEngine(
                model_spec=loaded.spec,
                executor=choose_executor(config.executor.executor, loaded.spec),
                flags=_serve_flags(config),
                kv_cache_dtype=config.cache.kv_cache_dtype,
                kv_bytes_per_token=loaded.kv_bytes_per_token,
                block_size=config.cache.block_size,
                free_memory_bytes=free_bytes,
            ),
            show=lambda line: print(line, file=sys.stderr),
        )
    finally:
        loaded.close()
    write_whole(arguments.output, msgspec.json.format(msgspec.json.encode(table), indent=1).decode() + "\n")
    print("\n".join(profile_lines(table)))
    if abs(table.drift) > STEADY_DRIFT:
        print(
            f"the same steps took up to {table.drift:.0%} longer in one round than in another: the machine is not quiet"
        )
    print(f"wrote {arguments.output}")
    if arguments.json is not None:
        write_json(arguments.json, result_document("profile", msgspec.to_builtins(table)))
    if arguments.report is not None:
        profile_page(table).write(arguments.report)
    return 0


def _serve_flags(config: EngineConfig) -> list[str]:
    """What makes `kvist serve` run the engine that was measured: neither the model, nor what a plan chooses."""
    # Here, because `--help` must not wait for what computes.
    from kvist.execution.threads import granted_cores

    return to_command_line(
        {
            "model": replace(config.model, model=DEFAULT_MODEL),
            "cache": replace(
                config.cache, kv_cache_bytes=None, num_blocks=None, max_total_tokens=None, enable_prefix_caching=True
            ),
            "executor": replace(config.executor, num_threads=config.executor.num_threads or granted_cores()),
        }
    )
