"""Send a load to an OpenAI-compatible server and measure what its users would see.

The server may be kvist's, vLLM's, llama-server's, SGLang's or another: --base-url says where. Without a load of
kvist's (--load) or a recorded one (--trace), prompts are real text of random lengths. docs/benchmarking.md explains it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

from kvist.bench.machine import date_now
from kvist.bench.prompt_writer import PromptForm
from kvist.bench.serve import Measured, ServeBench
from kvist.bench.serve_options import ServeOptions
from kvist.cli.load_arguments import add_load_arguments, chosen_requests
from kvist.cli.load_display import load_display
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.cli.serve_result_table import result_lines
from kvist.config.arguments import number, whole_number
from kvist.config.load import environment_api_keys
from kvist.core.errors import ConfigError
from kvist.metrics.benchmark_result import METRICS, Statistics
from kvist.metrics.service_level import parse_levels

EXIT_NONE_COMPLETED, EXIT_SERVER_LOST, EXIT_INTERRUPTED = 1, 1, 130
STOPPING = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C, and what `timeout` sends
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
QUICK_UNLOADED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server options")
    server.add_argument("--base-url", metavar="URL", help="of the server (default: http://HOST:PORT)")
    server.add_argument("--host", default="127.0.0.1", metavar="HOST", help="in place of --base-url (127.0.0.1)")
    server.add_argument("--port", default=8000, type=whole_number("--port", low=1), metavar="PORT", help="(8000)")
    server.add_argument(
        "--backend",
        default="openai",
        choices=("openai", "openai-chat", "vllm"),
        help=f"openai and vllm: {COMPLETIONS}; openai-chat: {CHAT} (default: openai)",
    )
    server.add_argument("--endpoint", metavar="PATH", help="in place of that route")
    server.add_argument("--model", metavar="NAME", help="as the server calls it (default: its first)")
    server.add_argument("--tokenizer", metavar="MODEL", help="to make prompts with (default: ask the server)")
    server.add_argument("--api-key", metavar="KEY", help="(default: that of KVIST_API_KEY)")
    server.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="for every request")
    server.add_argument(
        "--ready-check-timeout-sec", type=number("--ready-check-timeout-sec", low=0), default=60.0, metavar="S",
        help="how long to wait for the server (default: 60)",
    )  # fmt: skip
    server.add_argument(
        "--request-timeout-sec", type=number("--request-timeout-sec", low=0.001), default=600.0, metavar="S",
        help="longest that an answer may take (default: 600)",
    )  # fmt: skip
    add_load_arguments(parser)
    _add_request_arguments(parser)
    _add_measuring_arguments(parser)
    add_output_arguments(parser, model=False)


def _add_request_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("request options")
    group.add_argument(
        "--prompts-as", choices=("tokens", "text"), help="(default: tokens; text where answers are continued)"
    )
    group.add_argument("--seed", type=whole_number("--seed", low=0), metavar="N", help="other draws and other texts")
    group.add_argument("--temperature", type=number("--temperature", low=0), metavar="T", help="(default: the load's)")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers are as long as the load says (default: on)",
    )
    group.add_argument("--extra-body", default="{}", metavar="JSON", help="fields to add to every request")
    group.add_argument("--skip-too-long", action="store_true", help="leave out what exceeds the model's context")


def _add_measuring_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring options")
    group.add_argument(
        "--num-warmups", type=whole_number("--num-warmups", low=0), default=2, metavar="N",
        help="requests before anything is measured (default: 2)",
    )  # fmt: skip
    group.add_argument(
        "--capacity", type=number("--capacity", low=1e-9), metavar="R",
        help="requests per second that the server can do, which loads' rates are fractions of (default: measured)",
    )  # fmt: skip
    group.add_argument(
        "--goodput",
        nargs="+",
        metavar="METRIC:TARGET",
        help="ttft:MS tpot:MS e2el:MS, or multiples of the unloaded latency, ttft:5x (default: a load's own); none",
    )
    group.add_argument(
        "--find-max-rate", action="store_true", help="search for the largest rate that keeps the targets"
    )
    group.add_argument(
        "--attainment", type=number("--attainment", low=0.01), default=0.9, metavar="SHARE",
        help="of requests that must keep them (default: 0.9)",
    )  # fmt: skip
    group.add_argument(
        "--rate-tolerance", type=number("--rate-tolerance", low=0.01), default=0.1, metavar="SHARE",
        help="width of the bracket at which the search ends (default: 0.1)",
    )  # fmt: skip
    group.add_argument(
        "--percentile-metrics", default="ttft,tpot,itl,e2el", metavar="LIST", help=f"of {','.join(METRICS)}"
    )
    group.add_argument("--metric-percentiles", default="90,95,99", metavar="LIST", help="(default: 90,95,99)")
    group.add_argument(
        "--profile", action="store_true", help="have the server, kvist's with --trace-on-demand, trace its steps"
    )
    group.add_argument("--label", metavar="TEXT", help="goes into the result")
    group.add_argument("--save-result", action="store_true", help="write a JSON file named after load and date")
    group.add_argument("--save-detailed", action="store_true", help="with every request in it")
    group.add_argument("--result-dir", type=Path, metavar="DIR", help="where (default: the current folder)")
    group.add_argument("--result-filename", metavar="NAME", help="under this name")


def run(arguments: argparse.Namespace) -> int:
    options = _options(arguments)
    path = _result_path(arguments, options)
    check_output_files(arguments)
    with load_display() as display:
        bench = ServeBench(options, display)
        measured = uvloop.run(_run(bench))
    document = result_document("bench serve", measured.result)
    print("\n".join(result_lines(document)))
    if arguments.profile and measured.steps is None:
        print(f"the steps are in {measured.result['step_trace']} on the server's machine: kvist report FILE draws them")
    if path is not None:
        write_json(path, document)
        print(f"written to {path}")
    if arguments.report is not None:
        from kvist.bench.serve_report import write_report

        write_report(arguments.report, document, measured.requests, measured.steps)
    if measured.result["server_was_lost"]:
        return EXIT_SERVER_LOST
    if measured.result["was_stopped"]:
        return EXIT_INTERRUPTED
    return 0 if measured.result["completed"] else EXIT_NONE_COMPLETED


async def _run(bench: ServeBench) -> Measured:
    """A signal ends what is being measured; a second one, or one before anything is measured, ends the program."""
    loop = asyncio.get_running_loop()

    def interrupt(number: int, frame: FrameType | None) -> None:
        restore()
        if not bench.is_measuring:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(bench.stop)

    def restore() -> None:
        for each, handler in zip(STOPPING, before, strict=True):
            signal.signal(each, handler)

    # Not the loop's own handlers, which wait for the loop: a server may hang while it is asked for tokens.
    before = [signal.signal(each, interrupt) for each in STOPPING]
    try:
        return await bench.run()
    finally:
        restore()


def _options(arguments: argparse.Namespace) -> ServeOptions:
    path = arguments.endpoint or (CHAT if arguments.backend == "openai-chat" else COMPLETIONS)
    if not path.startswith("/"):
        raise ConfigError(f"--endpoint {path!r}: it begins with /")
    return ServeOptions(
        base_url=arguments.base_url or f"http://{arguments.host}:{arguments.port}",
        path=path,
        headers=_headers(arguments),
        model=arguments.model,
        tokenizer=arguments.tokenizer,
        requests=chosen_requests(arguments),
        form=PromptForm(arguments.prompts_as) if arguments.prompts_as else None,
        levels=_levels(arguments.goodput),
        seed=arguments.seed,
        temperature=arguments.temperature,
        ignore_eos=arguments.ignore_eos,
        extra_body=_object("--extra-body", arguments.extra_body),
        max_concurrency=arguments.max_concurrency,
        capacity_per_s=arguments.capacity,
        num_warmups=arguments.num_warmups,
        num_unloaded=QUICK_UNLOADED if arguments.quick else 6,
        skip_too_long=arguments.skip_too_long,
        timeout_s=arguments.request_timeout_sec,
        ready_timeout_s=arguments.ready_check_timeout_sec,
        max_rate=arguments.find_max_rate,
        attainment=_share(arguments.attainment),
        rate_tolerance=arguments.rate_tolerance,
        statistics=_statistics(arguments),
        detailed=arguments.save_detailed,
        label=arguments.label,
        profile=arguments.profile,
    )


def _result_path(arguments: argparse.Namespace, options: ServeOptions) -> Path | None:
    """Where the result goes: --json, or what vLLM's flags say."""
    asked = arguments.save_result or arguments.result_dir or arguments.result_filename
    if not asked and (arguments.json is not None or not arguments.save_detailed):
        return arguments.json  # type: ignore[no-any-return]
    if arguments.json is not None:
        raise ConfigError("--json and --save-result both say where the result goes; give one")
    name = f"{options.requests.source.name}-{date_now()[:19].replace(':', '')}.json"
    arguments.json = (arguments.result_dir or Path()) / (arguments.result_filename or name)
    return Path(arguments.json)


def _headers(arguments: argparse.Namespace) -> dict[str, str]:
    key = arguments.api_key or next(iter(environment_api_keys()), None)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    for word in arguments.header:
        name, equals, value = word.partition("=")
        if not equals or not name.strip() or any(sign in word for sign in "\r\n"):
            raise ConfigError(f"--header {word!r}: give NAME=VALUE")
        headers[name.strip().lower()] = value.strip()
    return headers


def _levels(words: list[str] | None) -> dict[Any, Any] | None:
    if words is None:
        return None
    return {} if words == ["none"] else parse_levels(words)


def _object(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {text!r} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} {text!r} is not a JSON object")
    for name in ("prompt", "messages", "stream", "n", "max_tokens"):
        if name in value:
            raise ConfigError(f"{flag}: {name!r} is up to the load")
    return value


def _share(value: float) -> float:
    if not 0 < value <= 1:
        raise ConfigError(f"--attainment {value:g}: it lies between 0 and 1")
    return value


def _statistics(arguments: argparse.Namespace) -> Statistics:
    metrics = [name.strip() for name in arguments.percentile_metrics.split(",")]
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(f"--percentile-metrics {name!r}: there is {', '.join(METRICS)}")
    parse = number("--metric-percentiles", low=0)
    percentiles = [parse(word) for word in arguments.metric_percentiles.split(",")]
    if max(percentiles) > 100:
        raise ConfigError(f"--metric-percentiles {max(percentiles):g}: at most 100")
    return Statistics(metrics=metrics, percentiles=percentiles)
