"""The `kvist` command: finds the subcommand, runs it, turns errors into exit codes.

Imports little before `main` runs: Ctrl-C while modules load then ends like Ctrl-C at any other time.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


class Command(NamedTuple):
    """A subcommand: its module has `add_arguments(parser)` and `run(arguments) -> exit code`."""

    module: str
    call: str  # what follows the options
    summary: str


COMMANDS = {
    "serve": Command("kvist.cli.serve", "[MODEL]", "serve a model behind an OpenAI-compatible HTTP API"),
    "chat": Command("kvist.cli.chat", "[MODEL]", "talk to a model in the terminal"),
    "complete": Command("kvist.cli.complete", "PROMPT", "continue one prompt and print the text"),
    "pull": Command("kvist.cli.pull", "[MODEL]", "fetch a model into the cache"),
    "models": Command("kvist.cli.models", "", "list the models kvist knows by name and those it has fetched"),
    "inspect": Command("kvist.cli.inspect", "[MODEL]", "show what a checkpoint holds and what memory it would take"),
    "make-random-model": Command(
        "kvist.cli.make_random_model", "--like NAME [OUTPUT]", "write a model with random weights, for tests"
    ),
    "bench serve": Command("kvist.cli.bench_serve", "", "send a load to a server and measure what its users would see"),
    "bench throughput": Command("kvist.cli.bench_throughput", "[MODEL]", "time an engine here on a whole load at once"),
    "bench latency": Command("kvist.cli.bench_latency", "[MODEL]", "time an engine here on single batches"),
    "bench compare": Command(
        "kvist.cli.bench_compare", "A.json B.json ...", "compare results, and say which differences exceed the spread"
    ),
    "bench kernels": Command(
        "kvist.cli.bench_kernels", "[MODEL]", "time each kernel of a model and compare with what the machine can do"
    ),
    "repro": Command("kvist.cli.repro", "NAME", "measure what a paper claims and print it beside the published figure"),
    "simulate": Command(
        "kvist.cli.simulate", "--config FILE.toml --workload LOAD", "run a load through a simulated cluster"
    ),
    "advise": Command(
        "kvist.cli.advise",
        "--scenario NAME | --workload LOAD --slo TARGETS",
        "say which techniques pay for a load, step by step",
    ),
    "plan": Command(
        "kvist.cli.plan",
        "--gpus N | --rate R --workload LOAD --slo TARGETS",
        "find the placement, policy and router that serve a load best",
    ),
    "predict": Command("kvist.cli.predict", "", "predict the time of a step on a GPU, or of a file of measured points"),
    "profile": Command("kvist.cli.profile", "[MODEL]", "measure how long this machine's steps take, for the simulator"),
    "fidelity": Command("kvist.cli.fidelity", "", "check the simulator's predictions against this machine's engine"),
    "calibrate": Command("kvist.cli.calibrate", "", "fit the cost model to measured points"),
    "bench policies": Command(
        "kvist.cli.bench_policies", "--load NAME", "compare scheduling policies on one load, in turns over one model"
    ),
    "trace summary": Command(
        "kvist.cli.trace_summary", "FILE", "say where the time of a run went, from the trace that --trace wrote"
    ),
    "report": Command(
        "kvist.cli.report", "RESULT.json ... -o PAGE.html", "make a page of stored results: benchmarks, papers, traces"
    ),
    "version": Command("kvist.cli.version", "", "print the version"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line and return the process's exit code. Never lets a traceback out unless KVIST_DEBUG is set."""
    _open_standard_streams()
    try:
        return _run(sys.argv[1:] if words is None else list(words))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _open_standard_streams() -> None:
    """Put the null device where a standard stream is closed, as after `2>&-`.

    Otherwise the next file or socket gets its number, and what is meant for people is written there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        os.set_inheritable(number, True)  # noqa: FBT003 - it takes no name
        setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - to the end


def _run(words: list[str]) -> int:
    from kvist.core.errors import ConfigError, InvalidRequestError, KvistError

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may say what the terminal's encoding lacks
    try:
        return _dispatch(words)
    except BrokenPipeError:
        # The reader of our output is gone, as in `kvist models | head -1`: not an error worth a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (KvistError, OSError) as error:
        return _fail(
            _one_line(error), EXIT_USAGE if isinstance(error, ConfigError | InvalidRequestError) else EXIT_FAILED
        )
    except Exception as error:  # noqa: BLE001 - the last stop before the user: a bug, said in one line
        return _fail(f"internal error: {type(error).__name__}: {error} (KVIST_DEBUG=1 shows where)", EXIT_FAILED)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_overview())
        return EXIT_OK if words else EXIT_USAGE
    from kvist.config.arguments import ArgumentParser

    name, words = _split_name(words)
    module = _load(name)
    usage = f"kvist {name} [options] {COMMANDS[name].call}".strip()
    parser = ArgumentParser(prog=f"kvist {name}", usage=usage, description=module.__doc__)
    module.add_arguments(parser)
    try:
        arguments = parser.parse_known(words)
    except SystemExit as leaving:  # argparse leaves after printing --help
        return int(leaving.code or 0)
    code: int = module.run(arguments)
    return code


def _split_name(words: list[str]) -> tuple[str, list[str]]:
    """The command that `words` begin with, of one word or two, and what follows it."""
    from kvist.core.errors import ConfigError
    from kvist.core.suggest import did_you_mean

    name = "version" if words[0] in ("-V", "--version") else words[0]
    seconds = [command.split(" ")[1] for command in COMMANDS if command.startswith(f"{name} ")]
    if seconds:
        name = " ".join(words[:2])
        if name not in COMMANDS:
            raise ConfigError(f"kvist {words[0]} takes one of: {', '.join(seconds)}")
        return name, words[2:]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise ConfigError(f"unknown command {name!r}; commands are {known}.{did_you_mean(name, COMMANDS)}")
    return name, words[1:]


def _load(name: str) -> ModuleType:
    # Imported by name so that `kvist --help` and `kvist version` do not wait for the engine's imports.
    return importlib.import_module(COMMANDS[name].module)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["usage: kvist COMMAND [options]", "", *lines, "", "kvist COMMAND --help lists the options of a command.", ""]
    )


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _fail(message: str, code: int) -> int:
    from kvist.config.load import is_debugging

    if is_debugging():
        import traceback

        traceback.print_exc()
    sys.stderr.write(f"kvist: {message}\n")
    return code
