"""Predict how long a step takes on a device, part by part, or every row of a file of measured points.

A step: --batch sequences, each with --new-tokens new tokens after --context tokens that are in the cache.
Rows of serving loads are simulated; --quick takes their steady state instead.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from kvist.cli.cost_arguments import add_placement_arguments, chosen_calibration, chosen_placement
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.config.arguments import whole_number
from kvist.core.errors import ConfigError
from kvist.costmodel.engine_generation import find_generation

if TYPE_CHECKING:
    from kvist.costmodel.roofline import RooflineModel
    from kvist.costmodel.step_work import StepWork

MAX_BATCH = 1_000_000
MAX_TOKENS = 1_000_000_000  # of a sequence
DECODE_CONTEXT = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the placement, the step, and the file of points that may stand in their place."""
    add_placement_arguments(parser)
    parser.add_argument("--batch", type=whole_number("--batch", low=1), default=1, metavar="N", help="sequences (1)")
    parser.add_argument(
        "--new-tokens", type=whole_number("--new-tokens", low=1), default=1, metavar="N", help="of each sequence (1)"
    )
    parser.add_argument(
        "--context",
        type=whole_number("--context", low=0),
        metavar="N",
        help=f"cached before them (0; with one new token {DECODE_CONTEXT})",
    )
    parser.add_argument("--profile", type=Path, metavar="FILE", help="of kvist profile: the step on that host instead")
    parser.add_argument("--points", type=Path, metavar="FILE.csv", help="predict each row of this file instead")
    add_output_arguments(parser, model=False)


def run(arguments: argparse.Namespace) -> int:
    check_output_files(arguments)
    if arguments.points is not None:
        return _predict_file(arguments)
    # Here and below, because `--help` must not wait for what predicts.
    from kvist.costmodel.calibrated_model import calibrated_model

    work = _chosen_work(arguments)
    if arguments.profile is not None:
        return _predict_on_this_host(arguments, work)
    placement = chosen_placement(arguments)
    model = calibrated_model(
        placement,
        generation=find_generation(arguments.engine),
        calibration=chosen_calibration(arguments),
        model_name=arguments.model,
    )
    lines, result = _answer(model, work)
    print("\n".join(lines))
    if arguments.json is not None:
        write_json(arguments.json, result_document("predict", result))
    if arguments.report is not None:
        from kvist.cli.predict_report import step_page

        step_page(lines, model.parts(work)).write(arguments.report)
    return 0


def _chosen_work(arguments: argparse.Namespace) -> StepWork:
    """Raises ConfigError for a step that no engine runs."""
    from kvist.costmodel.step_work import StepWork

    batch, num_new_tokens, num_context_tokens = arguments.batch, arguments.new_tokens, arguments.context
    if num_context_tokens is None:
        num_context_tokens = DECODE_CONTEXT if num_new_tokens == 1 else 0
    for flag, value, most in (
        ("--batch", batch, MAX_BATCH),
        ("--new-tokens", num_new_tokens, MAX_TOKENS),
        ("--context", num_context_tokens, MAX_TOKENS),
    ):
        if value > most:
            raise ConfigError(f"{flag} {value}: at most {most}")
    if num_new_tokens == 1 and num_context_tokens == 0:
        raise ConfigError(
            "--context 0 with one new token: no step decodes from nothing. Give --context of 1 or more for a decode, "
            "--new-tokens for a prompt"
        )
    return StepWork.of_equal(batch, num_new_tokens, num_context_tokens, num_sampled=batch)


def _predict_on_this_host(arguments: argparse.Namespace, work: StepWork) -> int:
    from kvist.cli.step_times import read_profile

    model = read_profile(arguments.profile)
    step_s, margin_s = model.predict_s(work), model.margin_s(work)
    host_s = step_s - model.executor_s(work)
    of_what = f"{model.table.model}, {len(model.table.points)} steps"
    print(f"step time {1e3 * step_s:.2f} ms +- {1e3 * margin_s:.2f} ms ({of_what})")
    print(f"  host {1e3 * host_s:.3f} ms, executor {1e3 * (step_s - host_s):.3f} ms")
    if arguments.json is not None:
        result = {
            "step_time_s": step_s,
            "margin_s": margin_s,
            "parts": {"host_s": host_s},
            "work": structs.asdict(work),
        }
        write_json(arguments.json, result_document("predict", result))
    return 0


def _answer(model: RooflineModel, work: StepWork) -> tuple[list[str], dict[str, object]]:
    from kvist.cli.units import format_bytes
    from kvist.core.errors import ConfigError
    from kvist.costmodel.memory import device_memory

    parts, margin_s = model.parts(work), model.margin_s(work)
    lines = [f"step time {1e3 * parts.total_s:.2f} ms +- {1e3 * margin_s:.2f} ms ({model.error_bar.reason})"]
    for field in fields(parts):
        seconds = getattr(parts, field.name)
        if seconds > 0.0:
            name = field.name.removesuffix("_s").replace("_", " ")
            lines.append(f"  {name:<20} {1e3 * seconds:>9.3f} ms  {seconds / parts.total_s:>6.1%}")
    result: dict[str, object] = {
        "step_time_s": parts.total_s,
        "margin_s": margin_s,
        "why": model.error_bar.reason,
        "parts": asdict(parts),
        "work": structs.asdict(work),
    }
    try:
        memory = device_memory(model.placement, max_num_batched_tokens=max(8192, work.num_tokens))
    except ConfigError as error:
        lines.append(f"  memory: {error}")
        return lines, result | {"memory": None}
    lines.append(
        f"memory per device: weights {format_bytes(round(memory.weight_bytes))}, activations "
        f"{format_bytes(round(memory.activation_bytes))}, KV {format_bytes(round(memory.kv_pool_bytes))} = "
        f"{memory.num_kv_tokens} tokens"
    )
    needed = work.decode_context_tokens + work.prefill_context_tokens
    if needed > memory.num_kv_tokens:
        lines.append(f"  the step needs {needed} tokens of KV, more than there is room for")
    return lines, result | {"memory": asdict(memory) | {"num_kv_tokens": memory.num_kv_tokens}}


def _predict_file(arguments: argparse.Namespace) -> int:
    from kvist.bench.calibration.points import read_points
    from kvist.bench.calibration.predict_points import predict_points

    rows = read_points(arguments.points)
    predictions = predict_points(rows, calibration=chosen_calibration(arguments), simulates=not arguments.quick)
    if arguments.json is not None:
        write_json(arguments.json, result_document("predict", {"rows": [asdict(each) for each in predictions]}))
    else:
        for each in predictions:
            print("-" if each.predicted is None else f"{each.predicted:g} +- {each.error_bar:g}", each.why, sep="\t")
    if arguments.report is not None:
        from kvist.cli.predict_report import points_page

        points_page(rows, predictions).write(arguments.report)
    num_predicted = sum(each.predicted is not None for each in predictions)
    print(f"predicted {num_predicted} of {len(predictions)} rows")
    return 0
