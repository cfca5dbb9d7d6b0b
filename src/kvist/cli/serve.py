"""Serve a model behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from kvist.assembly.engine_command import ENGINE_COMMAND
from kvist.cli.model_source import add_model_arguments
from kvist.cli.start_display import start_display
from kvist.cli.units import format_bytes
from kvist.config.arguments import add_config_arguments, to_command_line
from kvist.config.engine_config import EngineConfig
from kvist.config.load import SERVE_SECTIONS, engine_config, load_configs
from kvist.config.server_config import ServerConfig
from kvist.config.toml_text import to_toml
from kvist.runtime.engine_launch import EngineChild, launch_engine
from kvist.server.open_files import allow_many_connections

if TYPE_CHECKING:
    from kvist.assembly.start_engine import RunningEngine

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and all options."""
    add_model_arguments(parser)
    parser.add_argument(
        "--print-config", action="store_true", help="print the options that differ from the defaults as TOML, and leave"
    )
    add_config_arguments(parser, SERVE_SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    configs = load_configs(arguments, SERVE_SECTIONS)
    if arguments.print_config:
        print(f"# kvist serve {shlex.join(to_command_line(configs))}\n{to_toml(configs)}", end="")
        return 0
    server: ServerConfig = configs["server"]
    if server.host not in LOOPBACK and not server.api_key and server.api_key_file is None:
        print(f"kvist: anyone who reaches {server.host} may ask: no --api-key is set", file=sys.stderr)
    allow_many_connections()
    child = launch_engine(ENGINE_COMMAND) if server.engine_client == "process" else None
    try:
        return _serve(engine_config(configs), server, child)
    finally:
        if child is not None:
            child.discard()  # whatever kept it from being used, or it has ended


def _serve(config: EngineConfig, server: ServerConfig, child: EngineChild | None) -> int:
    # Here, so that the engine's process loads its code while this one loads the server's.
    from kvist.assembly.serve import serve

    with start_display() as display:

        def show_ready(engine: RunningEngine) -> None:
            display.close()
            print("\n".join(_summary(engine)), flush=True)

        return serve(
            config,
            server,
            child=child,
            on_phase=display.show,
            on_ready=show_ready,
            print_line=lambda line: print(line, flush=True),
        )


def _summary(engine: RunningEngine) -> list[str]:
    """The memory table and what was chosen for the user: sizes, limits, sampling defaults, times."""
    info, model = engine.client.info, engine.model
    num_tokens = info.num_blocks * info.block_size
    sampling = ", ".join(f"{name} {value:g}" for name, value in model.default_sampling.items())
    phases = ", ".join(f"{name} {duration_s:.2f} s" for name, duration_s in engine.start_phases_s.items())
    rows = [
        ("weights", format_bytes(info.weight_bytes)),
        ("workspace", f"{format_bytes(info.workspace_bytes)} at most"),
        ("KV pool", f"{format_bytes(info.kv_cache_bytes)}: {info.num_blocks} blocks, {num_tokens} tokens"),
        ("step", f"at most {info.token_budget} tokens of {info.max_num_seqs} requests"),
        ("longest request", f"{info.max_model_len} tokens"),
        ("sampling", f"{sampling or 'built-in defaults'} (where a request does not say)"),
        ("start", phases),
    ]
    return [f"  {name:<16} {value}" for name, value in rows]
