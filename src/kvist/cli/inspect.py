"""Show what a checkpoint is, what it holds and what memory it would take with the given options. Loads no weights."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from kvist.assembly.memory_size import size_memory
from kvist.cli.checkpoint_report import CheckpointReport, report_checkpoint
from kvist.cli.model_source import add_model_arguments, find_model
from kvist.cli.plan_report import plan_json, plan_lines
from kvist.cli.units import format_bytes, format_count
from kvist.config.arguments import add_config_arguments
from kvist.config.engine_config import EngineConfig
from kvist.config.load import ENGINE_SECTIONS, engine_config, load_configs
from kvist.config.model_config import ModelConfig
from kvist.core.model_spec import ModelSpec
from kvist.execution.loading import describe_plan
from kvist.execution.memory_model import MemoryTable
from kvist.models.registry import read_model
from kvist.weights.checkpoint import Checkpoint, open_checkpoint

ASSUMED_BATCHED_TOKENS = 512  # for the workspace, where the engine would measure its token budget at the start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the form of the answer and all options that change the memory table."""
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object, sizes in bytes")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--plan", action="store_true", help="list the operations that the native executor would run")
    add_config_arguments(parser, ENGINE_SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    config = engine_config(load_configs(arguments, ENGINE_SECTIONS))
    checkpoint = open_checkpoint(find_model(config.model))
    report = report_checkpoint(checkpoint)
    num_batched_tokens = config.scheduler.max_num_batched_tokens or ASSUMED_BATCHED_TOKENS
    table = size_memory(
        config,
        report.spec,
        max_num_batched_tokens=num_batched_tokens,
        draft_spec=_draft_spec(config),
    )
    if arguments.json:
        answer = report.as_json() | {"memory": _memory_json(table)}
        if arguments.tensors:
            answer["tensors"] = _tensors_json(checkpoint)
        if arguments.plan:
            plan = describe_plan(checkpoint, config, max_num_tokens=num_batched_tokens)
            answer["plan"] = plan_json(plan, report.spec)
        print(json.dumps(answer, indent=2, ensure_ascii=False))
        return 0
    lines = [*_checkpoint_lines(report), "", *_memory_lines(table, num_batched_tokens)]
    lines += ["", *(_tensor_lines(checkpoint) if arguments.tensors else _tensor_kind_lines(report))]
    if arguments.plan:
        plan = describe_plan(checkpoint, config, max_num_tokens=num_batched_tokens)
        lines += ["", *plan_lines(plan, report.spec)]
    print("\n".join(lines))
    return 0


def _draft_spec(config: EngineConfig) -> ModelSpec | None:
    name = config.speculation.speculative_model
    return None if name is None else read_model(open_checkpoint(find_model(ModelConfig(model=name)))).spec


def _checkpoint_lines(report: CheckpointReport) -> list[str]:
    spec = report.spec
    windows = {layer.sliding_window for layer in spec.layers if layer.sliding_window is not None}
    num_windowed = sum(layer.sliding_window is not None for layer in spec.layers)
    shape = f"{spec.num_layers} layers, hidden {spec.hidden_size}, feed-forward {spec.intermediate_size}"
    attention = f"{spec.num_q_heads} query heads, {spec.num_kv_heads} KV heads of {spec.head_dim}"
    if windows:
        attention += f"; {num_windowed} layers see {'/'.join(map(str, sorted(windows)))} tokens"
    formats = ", ".join(f"{name} {format_bytes(size)}" for name, size in report.bytes_per_format.items())
    rows = [
        ("architecture", spec.model_type),
        ("shape", shape),
        ("attention", attention),
        ("parameters", format_count(report.num_parameters)),
        ("stored", f"{format_bytes(report.weight_bytes)} ({formats})"),
        ("context", f"{spec.max_position} tokens"),
        ("vocabulary", f"{spec.vocab_size}{', tied to the output' if spec.tie_embeddings else ''}"),
        ("tokenizer", report.tokenizer),
        ("chat template", "yes" if report.has_chat_template else "no"),
    ]
    if spec.moe:
        rows.insert(2, ("experts", f"{spec.moe.num_experts}, of which a token uses {spec.moe.num_experts_per_token}"))
    return [report.path, *(f"  {name:<14} {value}" for name, value in rows)]


def _memory_lines(table: MemoryTable, num_batched_tokens: int) -> list[str]:
    pool = f"{table.num_blocks} blocks of {table.block_size} tokens = {table.num_kv_tokens} tokens"
    rows = [
        ("weights", table.weight_bytes, "as stored" if table.executor == "native" else "as float32"),
        *([("draft model", table.draft_weight_bytes, "its weights")] if table.draft_weight_bytes else []),
        ("workspace", table.workspace_bytes, f"at most, of a step of {num_batched_tokens} tokens"),
        ("KV pool", table.kv_pool_bytes, f"{pool}; by {table.num_blocks_by}"),
        ("total", table.total_bytes, ""),
    ]
    lines = [f"  {name:<14} {format_bytes(size):>10}  {note}".rstrip() for name, size, note in rows]
    per_token = f"  {'KV per token':<14} {format_bytes(table.kv_bytes_per_token):>10}"
    return [f"Memory on the {table.executor} executor", *lines, per_token]


def _tensor_kind_lines(report: CheckpointReport) -> list[str]:
    width = max(len(kind.name) for kind in report.tensor_kinds)
    return [
        "Tensors",
        *(
            f"  {kind.name:<{width}}  {kind.count:>4} x {_shape(kind.shape):<18} {'/'.join(kind.formats):<12}"
            f" {format_bytes(kind.num_bytes):>10}"
            for kind in report.tensor_kinds
        ),
    ]


def _tensor_lines(checkpoint: Checkpoint) -> list[str]:
    tensors = checkpoint.tensors
    width = max(map(len, tensors), default=0)
    return [
        "Tensors",
        *(
            f"  {name:<{width}}  {_shape(tensor.shape):<18} {tensor.format.name:<8}"
            f" {format_bytes(len(tensor.data)):>10}"
            for name, tensor in tensors.items()
        ),
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _memory_json(table: MemoryTable) -> dict[str, int | str]:
    return asdict(table) | {"kv_pool_bytes": table.kv_pool_bytes, "total_bytes": table.total_bytes}


def _tensors_json(checkpoint: Checkpoint) -> list[dict[str, object]]:
    return [
        {"name": name, "shape": tensor.shape, "format": tensor.format.name, "num_bytes": len(tensor.data)}
        for name, tensor in checkpoint.tensors.items()
    ]
