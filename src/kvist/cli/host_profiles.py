"""Profiles of `kvist profile` as hosts to plan with: read, checked, and with the room that their memory has for KV."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from kvist.cli.step_times import read_profile
from kvist.config.arguments import number
from kvist.config.cache_config import CacheConfig
from kvist.core.errors import ConfigError
from kvist.costmodel.profile_table import ProfiledEngine
from kvist.planner.measured_host import MeasuredHost

HOW_TO = "kvist profile MODEL --output profile.json (two minutes), then kvist plan --profile profile.json"
CPU_NAMES = ("cpu", "host", "this", "here", "local", "localhost")
GIGA = 1e9


def add_host_arguments(group: argparse._ArgumentGroup) -> None:
    """What says that hosts are measured ones."""
    group.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="FILE",
        help="of kvist profile: plan for CPU hosts like the measured one, in place of --device; several profiles, as "
        "of other number formats, are compared",
    )
    group.add_argument(
        "--memory-gb",
        type=number("--memory-gb", low=1e-3),
        metavar="GB",
        help="memory of a measured host, in 1e9 bytes (default: what was free when it was profiled)",
    )


def read_hosts(files: Sequence[str], *, model: str | None, memory_gb: float | None) -> dict[str, MeasuredHost]:
    """The hosts by the names of their profiles. Raises ConfigError for what no plan can be made from.

    model: as asked for; None for the profiles' own.
    """
    hosts: dict[str, MeasuredHost] = {}
    for name in files:
        table = read_profile(Path(name)).table
        if table.engine is None:
            raise ConfigError(
                f"--profile {name} does not say what engine it is of, as those of an older kvist: "
                f"run kvist profile {table.model} --output {name} again"
            )
        if model is not None and not _is_same_model(model, table.model):
            raise ConfigError(
                f"--profile {name} is of {table.model}, not of {model}: step times of one say nothing of the other. "
                f"Run kvist profile {model} --output FILE, and give that; or leave --model out"
            )
        if name in hosts:
            raise ConfigError(f"--profile {name} is given twice")
        memory_bytes = table.engine.free_memory_bytes if memory_gb is None else int(memory_gb * GIGA)
        hosts[name] = MeasuredHost(
            profile=name,
            table=table,
            engine=table.engine,
            memory_bytes=memory_bytes,
            max_kv_tokens=room_of(
                table.engine,
                memory_bytes,
                max_num_batched_tokens=table.max_step_tokens,  # the largest that was measured
                max_num_seqs=max(table.max_sequences, 1),
            ),
        )
    return hosts


def refuse_a_cpu_as_device(name: str) -> None:
    """Raise ConfigError, saying how CPUs are planned, if `name` is no device of the catalogue but means a CPU."""
    if name.lower() in CPU_NAMES:
        raise ConfigError(f"--device {name}: a CPU is planned from a profile of it: {HOW_TO}")
    if name.endswith(".json") or Path(name).is_file():
        raise ConfigError(f"--device {name} is a file; a profile is given as --profile {name}")


def _is_same_model(asked: str, profiled: str) -> bool:
    if asked == profiled:
        return True
    return Path(asked).exists() and Path(profiled).exists() and Path(asked).samefile(profiled)


def room_of(engine: ProfiledEngine, memory_bytes: int, *, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Tokens of the pool that the engine would make, of itself, in so much memory.

    Raises ConfigError if there is no room for a pool.
    """
    # Here, because other commands that import this plan without an engine.
    from kvist.execution.memory_model import memory_table

    return memory_table(
        engine.model_spec,
        CacheConfig(block_size=engine.block_size, kv_cache_dtype=engine.kv_cache_dtype),
        executor=engine.executor,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=None,
        free_bytes=memory_bytes,
    ).num_kv_tokens
